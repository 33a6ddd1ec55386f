# SPDX-License-Identifier: Apache-2.0
"""What the other modules ask of PyTorch's groups."""

from typing import Any


def unwrapped(backend: Any) -> Any:
    """The backend itself, without what TORCH_DISTRIBUTED_DEBUG=DETAIL puts around it."""
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend
