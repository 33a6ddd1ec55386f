# SPDX-License-Identifier: Apache-2.0
"""docs/pytorch.md says of Quoit what a trial of every call gives now."""

import functools
import sys
from pathlib import Path

import capabilities

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

import make_pytorch  # noqa: E402


@functools.cache
def trial():
    return capabilities.trial("quoit")


def test_page_is_true():
    quoit = trial()
    page = make_pytorch.PAGE.read_text()
    for kind, table in make_pytorch.tables(quoit, quoit).items():
        written = make_pytorch.section(page, kind)[1]
        assert make_pytorch.quoit_part(written) == make_pytorch.quoit_part(table), "run python docs/make_pytorch.py"


def test_nothing_is_wrong():
    """A cell may be refused, never wrong."""
    for table in trial().values():
        assert "wrong result" not in [outcome for cells in table.values() for outcome in cells.values()]
