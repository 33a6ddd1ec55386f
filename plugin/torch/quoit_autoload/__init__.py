# SPDX-License-Identifier: Apache-2.0
"""What PyTorch runs by itself to learn of the backend (entry points ``torch.backends`` and ``torch.distributed.backends``).

It stands beside the package, not in it: to load an entry point inside would import the package first, and its refusal of a torch that
it was not built for would end ``import torch``.
"""

import warnings


def autoload() -> None:
    """Register the backend. A package that does not fit this torch must not keep torch from loading: it warns instead."""
    try:
        import quoit  # noqa: F401 - registers when it is imported; half-imported (it imports torch first) it is about to
    except Exception as error:
        warnings.warn(f"the quoit backend is not available: {error}", stacklevel=2)
