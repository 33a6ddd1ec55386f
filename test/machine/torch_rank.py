# SPDX-License-Identifier: Apache-2.0
"""One rank of test_torch: collectives of torch.distributed over quoit, each checked; prints how the ranks are joined."""
import datetime

import quoit
import torch
import torch.distributed as dist

dist.init_process_group("quoit", timeout=datetime.timedelta(seconds=120))
rank, size = dist.get_rank(), dist.get_world_size()
for count in (1, 1000, 300_000):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        mine = (torch.arange(count) % 7 + rank).to(dtype)
        everybody = [(torch.arange(count) % 7 + other).to(dtype) for other in range(size)]
        total = mine.clone()
        dist.all_reduce(total)
        assert torch.equal(total, sum(everybody)), f"all_reduce of {count} {dtype}"
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        assert all(torch.equal(part, other) for part, other in zip(parts, everybody)), f"all_gather of {count} {dtype}"
        root = mine.clone()
        dist.broadcast(root, src=0)
        assert torch.equal(root, everybody[0]), f"broadcast of {count} {dtype}"
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
model(torch.ones(8, 64) * (rank + 1)).sum().backward()
gradients = [torch.empty_like(model.module.weight.grad) for _ in range(size)]
dist.all_gather(gradients, model.module.weight.grad)
assert all(torch.equal(gradients[0], other) for other in gradients), "DistributedDataParallel's gradients differ"
assert torch.allclose(gradients[0], torch.full((64, 64), 8.0 * (size + 1) / 2)), "the gradients are not the average"
print(quoit.describe())
dist.destroy_process_group()
