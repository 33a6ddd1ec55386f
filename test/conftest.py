# SPDX-License-Identifier: Apache-2.0
"""For all tests in Python."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory):
    """What torch.compile keeps of tests' functions, and its folder, which comes with DistributedDataParallel, go with the tests."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
