# SPDX-License-Identifier: Apache-2.0
"""Makes launcher.py importable. The tests use the quoit that is installed, or the one on PYTHONPATH."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
