# SPDX-License-Identifier: Apache-2.0
"""For all tests in Python."""

import os
import signal

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)  # it comes ignored where tests run in a shell's background, and tests send it to their ranks


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory):
    """What torch.compile keeps of tests' functions, and its folder, which comes with DistributedDataParallel, go with the tests."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
