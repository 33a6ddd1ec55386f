# SPDX-License-Identifier: Apache-2.0
"""The Python package: registration, the entry points, and a torch that it was not built for.

What happens while torch or quoit is imported needs an interpreter that has not done so. Each costs seconds, so there are three, and what
comes after the import is tried in children of theirs.
"""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import quoit
from launcher import SLOW

AFTERWARDS = """
import json, os, sys
sys.stdout.flush()
for name, code in json.loads(sys.argv[1]).items():
    print(f"== {name}", flush=True)
    child = os.fork()
    if child == 0:
        exec(code, {"__name__": "__main__"})
        sys.exit(0)
    print(f"== status {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
"""


def python(first, codes, **environment):
    """A new interpreter runs `first`, then each of `codes` in a child: {name: (status, output)}; the first one's output by ""."""
    done = subprocess.run(
        [sys.executable, "-c", first + AFTERWARDS, json.dumps(codes)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120 * SLOW,
    )
    assert done.returncode == 0, done.stdout
    before, *parts = done.stdout.split("== ")
    results = {"": (0, before)}
    for head, status in zip(parts[::2], parts[1::2], strict=True):
        name, _, output = head.partition("\n")
        results[name] = (int(status.split()[1]), output)
    return results


def installed():
    return [point for point in entry_points(group="torch.backends") if point.name == "quoit"]


needs_entry_points = pytest.mark.skipif(not installed(), reason="quoit is on the path, but not installed: there are no entry points")


@pytest.fixture(scope="module")
def quoit_first():
    return python(
        "import quoit, torch, torch.distributed as dist\nassert 'quoit' in dist.Backend.backend_list\n",
        {
            "registers": "import quoit, torch.distributed as dist, importlib\n"
            "assert dist.Backend.QUOIT == 'quoit'\n"
            "assert dist.Backend.backend_capability['quoit'] == ['cpu', 'cuda']\n"
            "assert dist.Backend.default_device_backend_map['cpu'] == 'gloo', 'the default must stay what it was'\n"
            "assert quoit.__version__ == '0.1.0' and quoit._C.library_version().startswith('0.1')\n"
            "assert 'QUOIT_TIMEOUT' in quoit.settings()\n"
            "importlib.reload(quoit)\n",
            "compat": "import torch.distributed as d; print(hasattr(d.monitored_barrier, '_quoit_wrapped'))",
        },
    )


@pytest.fixture(scope="module")
def without_autoload():
    return python(
        "import sys, torch\nassert 'quoit' not in sys.modules\n",
        {
            "other torch": "import torch\n"
            "torch.__version__ = torch.torch_version.TorchVersion('2.99.0')\n"
            "try:\n"
            "    import quoit\n"
            "except ImportError as error:\n"
            "    assert str(error).count('\\n') == 0 and '2.99.0' in str(error) and 'built for torch' in str(error), error\n"
            "else:\n"
            "    raise SystemExit('not refused')\n",
            "autoload": "import warnings, torch\n"
            "torch.__version__ = torch.torch_version.TorchVersion('2.99.0')\n"
            "from importlib.metadata import entry_points\n"
            "(point,) = entry_points(group='torch.backends', name='quoit')\n"
            "autoload = point.load()\n"
            "with warnings.catch_warnings(record=True) as caught:\n"
            "    warnings.simplefilter('always')\n"
            "    autoload()\n"
            "assert len(caught) == 1 and 'quoit backend is not available' in str(caught[0].message), caught\n",
            "compat": "import torch.distributed as d, quoit; print(hasattr(d.monitored_barrier, '_quoit_wrapped'))",
        },
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        TORCH_QUOIT_COMPAT="0",
    )


def test_import_registers(quoit_first):
    status, output = quoit_first["registers"]
    assert status == 0, output
    assert "Warning" not in quoit_first[""][1], quoit_first[""][1]


def test_other_torch(without_autoload):
    status, output = without_autoload["other torch"]
    assert status == 0, output


@needs_entry_points
def test_autoload_warns_only(without_autoload):
    status, output = without_autoload["autoload"]
    assert status == 0, output


def test_compat_can_be_left_out(quoit_first, without_autoload):
    assert quoit_first["compat"][1].strip().endswith("True")
    assert without_autoload["compat"][1].strip().endswith("False")


@needs_entry_points
def test_autoload():
    assert [point.value for point in entry_points(group="torch.distributed.backends", name="quoit")] == ["quoit_autoload:autoload"]
    code = (
        "import torch, sys\n"
        "assert 'quoit' in sys.modules and 'quoit' in torch.distributed.Backend.backend_list\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('quoit', rank=0, world_size=1, store=dist.HashStore())\n"
        "dist.barrier()\n"
    )
    _, output = python(code, {})[""]
    assert "Warning" not in output, output


@needs_entry_points
def test_bench_command():
    (point,) = entry_points(group="console_scripts", name="bench_allreduce")
    call = f"import sys; sys.argv = ['bench_allreduce', '--version']; from {point.module} import {point.attr}; {point.attr}()"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, timeout=60 * SLOW)
    assert (done.returncode, done.stdout.split()[-1:], done.stderr) == (0, ["0.1.0"], "")


def test_nothing_optional_is_needed():
    """What is loaded with the package is torch's and the system's; OpenSSL, libibverbs, UCX and hwloc are opened when they are asked for."""
    folder = os.path.dirname(quoit.__file__)
    objects = [os.path.join(folder, name) for name in os.listdir(folder) if ".so" in name]
    assert {os.path.basename(path).split(".")[0] for path in objects} >= {"_C", "libquoit"}, objects
    for path in objects:
        listed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\)[^\[]*\[([^\]]+)\]", listed)
        others = [name for name in needed if not re.match(r"(libtorch|libc10|libquoit|libstdc\+\+|libgcc_s|libc|libm|ld-linux)[\w-]*\.so", name)]
        assert needed and others == [], (path, needed)
