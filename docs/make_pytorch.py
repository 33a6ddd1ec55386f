#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/pytorch.md: what of torch.distributed works, tried call by call.

    python docs/make_pytorch.py            tries Quoit and Gloo on two ranks, and puts the tables into the page
    python docs/make_pytorch.py --print    prints the tables

test/torch/capabilities.py makes the calls. NCCL cannot be tried on a machine without GPUs: its column is from documentation and marked as
such. The rest of the page is written by hand.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "pytorch.md"
sys.path.insert(0, str(ROOT / "test" / "torch"))

from capabilities import trial  # noqa: E402

# From documentation. PyTorch's: the table of backends, and the texts of ReduceOp and isend, in
# https://docs.pytorch.org/docs/stable/distributed.html; NCCL's types:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html
NCCL_CALLS = {"isend, irecv with tags": "no: tags are not supported", "monitored_barrier": "no: Gloo only"}
NCCL_LISTED = ["broadcast", "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
               "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send, recv", "barrier"]
NCCL_OPS = {"BAND": "no", "BOR": "no", "BXOR": "no", "MIN": "yes; not complex", "MAX": "yes; not complex", "PRODUCT": "yes; not complex",
            "AVG": "yes (NCCL 2.10)", "SUM": "yes", "PREMUL_SUM": "half, float, double (NCCL 2.11)"}


class Notes:
    """Footnotes of one table: which dtypes do not work, and why."""

    def __init__(self):
        self.numbers = {}

    def cell(self, cells):
        """{dtype: outcome} as text: how many work, and notes for the others by reason."""
        good = [name for name in cells if cells[name] == "yes"]
        reasons = {}
        for name, text in cells.items():
            if text != "yes":
                reasons.setdefault(text, []).append(name)
        marks = "".join(f" [{self.number(names, text)}]" for text, names in reasons.items())
        if len(cells) == 1:
            return ("yes" if good else "no") + marks
        return {len(cells): f"all {len(cells)}", 0: "none"}.get(len(good), f"{len(good)} of {len(cells)}") + marks

    def number(self, names, text):
        note = f"{', '.join(names)}: {text}"
        return self.numbers.setdefault(note, len(self.numbers) + 1)

    def lines(self):
        return "".join(f"- [{number}] {note}\n" for note, number in self.numbers.items())


def nccl_call(title):
    return NCCL_CALLS.get(title, "yes" if title in NCCL_LISTED else "not stated")


def tables(quoit, gloo):
    """Name of a table -> its lines, Quoit's notes before Gloo's."""
    made = {}
    for kind, title, nccl in (("calls", "Call", nccl_call), ("ops", "Operation of all_reduce", NCCL_OPS.get)):
        ours, theirs = Notes(), Notes()
        rows = [(row, ours.cell(quoit[kind][row]), theirs.cell(gloo[kind][row]), nccl(row)) for row in quoit[kind]]
        made[kind] = (
            f"| {title} | Quoit | Gloo | NCCL (documented, not tried) |\n|---|---|---|---|\n"
            + "".join(f"| {' | '.join(row)} |\n" for row in rows)
            + f"\nQuoit's notes:\n\n{ours.lines()}\nGloo's notes:\n\n{theirs.lines()}"
        )
    return made


def section(page, kind):
    """(what is before a table in the page, the table, what is after it)."""
    begin, end = f"<!-- {kind}: made by docs/make_pytorch.py -->\n", f"<!-- end of {kind} -->\n"
    before, rest = page.split(begin)
    table, after = rest.split(end)
    return before + begin, table, end + after


def quoit_part(table):
    """Of a table: the first two columns and Quoit's notes."""
    rows, notes = table.split("\nGloo's notes:")[0].split("\nQuoit's notes:\n\n")
    return [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in rows.splitlines()], notes


def main():
    made = tables(trial("quoit"), trial("gloo"))
    if sys.argv[1:] == ["--print"]:
        print("\n".join(made.values()))
        return
    page = PAGE.read_text()
    for kind, table in made.items():
        before, _, after = section(page, kind)
        page = before + table + after
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
