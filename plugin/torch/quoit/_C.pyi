# SPDX-License-Identifier: Apache-2.0
"""Types of the C++ module."""

import datetime
from typing import Any, Optional

from torch._C._distributed_c10d import Backend, ErrorType

class Options(Backend.Options):
    """Options of a group, for ``init_process_group(pg_options=...)`` and ``new_group(pg_options=...)``.

    timeout: limit of creating the group and of each operation; wins over the ``timeout`` given beside it.
    """

    timeout: datetime.timedelta
    def __init__(self, timeout: Optional[datetime.timedelta] = None) -> None: ...

class ProcessGroupQuoit(Backend):
    """The backend object of a group."""

    @property
    def options(self) -> Options: ...
    def describe(self, json: bool = False) -> str: ...
    def last_error(self) -> str: ...
    def get_error(self) -> ErrorType: ...

def create(backend: Any, options: Optional[Options]) -> ProcessGroupQuoit: ...
def shutdown_all() -> None: ...
def library_version() -> str: ...
def settings() -> str: ...
