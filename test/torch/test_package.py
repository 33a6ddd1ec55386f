# SPDX-License-Identifier: Apache-2.0
"""The Python package: registration, the entry points, and a torch that it was not built for."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest


def python(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )


def test_import_registers():
    done = python(
        "import quoit, torch, torch.distributed as dist\n"
        "assert 'quoit' in dist.Backend.backend_list and dist.Backend.QUOIT == 'quoit'\n"
        "assert dist.Backend.backend_capability['quoit'] == ['cpu', 'cuda']\n"
        "assert dist.Backend.default_device_backend_map['cpu'] == 'gloo', 'the default must stay what it was'\n"
        "assert quoit.__version__ == '0.1.0' and quoit._C.library_version().startswith('0.1')\n"
        "assert 'QUOIT_TIMEOUT' in quoit.settings() or 'TIMEOUT' in quoit.settings()\n"
        "import importlib; importlib.reload(quoit)\n"
    )
    assert done.returncode == 0, done.stdout


def test_other_torch():
    code = (
        "import torch\n"
        "torch.__version__ = torch.torch_version.TorchVersion('2.99.0')\n"
        "try:\n"
        "    import quoit\n"
        "except ImportError as error:\n"
        "    assert str(error).count('\\n') == 0 and '2.99.0' in str(error) and 'built for torch' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('not refused')\n"
    )
    done = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stdout


def installed():
    return [point for point in entry_points(group="torch.backends") if point.name == "quoit"]


@pytest.mark.skipif(not installed(), reason="quoit is on the path, but not installed: there are no entry points")
def test_autoload_warns_only():
    code = (
        "import warnings, torch\n"
        "torch.__version__ = torch.torch_version.TorchVersion('2.99.0')\n"
        "from importlib.metadata import entry_points\n"
        "(point,) = entry_points(group='torch.backends', name='quoit')\n"
        "autoload = point.load()\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    autoload()\n"
        "assert len(caught) == 1 and 'quoit backend is not available' in str(caught[0].message), caught\n"
    )
    done = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stdout


def test_compat_can_be_left_out():
    code = "import torch.distributed as d, quoit; print(hasattr(d.monitored_barrier, '_quoit_wrapped'))"
    assert python(code).stdout.strip().endswith("True")
    assert python(code, TORCH_QUOIT_COMPAT="0", TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.strip().endswith("False")


@pytest.mark.skipif(not installed(), reason="quoit is on the path, but not installed: there are no entry points")
def test_autoload():
    assert [point.value for point in entry_points(group="torch.distributed.backends", name="quoit")] == ["quoit_autoload:autoload"]
    for code in (
        "import torch, sys; assert 'quoit' in sys.modules; assert 'quoit' in torch.distributed.Backend.backend_list",
        "import quoit, torch; assert 'quoit' in torch.distributed.Backend.backend_list",
        "import torch.distributed as dist; dist.init_process_group('quoit', rank=0, world_size=1, store=dist.HashStore()); "
        "dist.barrier()",
    ):
        done = python(code)
        assert done.returncode == 0 and "Warning" not in done.stdout, done.stdout
