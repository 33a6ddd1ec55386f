# SPDX-License-Identifier: Apache-2.0
"""Types of the file that the build writes."""

VERSION: str
TORCH_VERSION: str
