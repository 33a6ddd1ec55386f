# SPDX-License-Identifier: Apache-2.0
"""Makes launcher.py importable. The tests use the quoit that is installed, or the one on PYTHONPATH."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory):
    """What torch.compile keeps of the tests' functions goes with the tests."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
