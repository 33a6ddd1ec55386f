# SPDX-License-Identifier: Apache-2.0
"""One rank of test_torch_cut_cable: all_reduce, with a limit of so many milliseconds each, until one fails. Says "ready" after the first few, then how
long the last one took and the text of its error."""
import datetime
import json
import os
import sys
import time

import quoit
import torch
import torch.distributed as dist

dist.init_process_group("quoit", timeout=datetime.timedelta(seconds=240))
for _ in range(5):
    dist.all_reduce(torch.ones(50000))
dist.group.WORLD.set_timeout(datetime.timedelta(milliseconds=int(sys.argv[1])))
edges = [each["edge"] for each in quoit.describe(as_dict=True)["ranks"]]
print(json.dumps({"pid": os.getpid(), "edge": edges[1 - dist.get_rank()]}), flush=True)
print("ready", flush=True)
begin = 0.0
try:
    while True:
        begin = time.monotonic()
        dist.all_reduce(torch.ones(50000))
except dist.DistBackendError as error:
    print("ended", round(time.monotonic() - begin, 3), " ".join(str(error).split()), flush=True)
sys.stdout.flush()
os._exit(0)
