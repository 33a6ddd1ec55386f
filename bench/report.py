# SPDX-License-Identifier: Apache-2.0
"""What the measuring programs of this folder share: sizes, medians with their range, the machine's name, and where results go."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def parse_size(text):
    """"64M" -> 67108864."""
    shifts = {"K": 10, "M": 20, "G": 30}
    try:
        return int(text[:-1]) << shifts[text[-1].upper()] if text[-1].upper() in shifts else int(text)
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 64M") from None


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    return f"{len(os.sched_getaffinity(0))} processors ({model}), Linux {platform.release().split('-')[0]}"


def spread(values, digits=3):
    """Median and range of the rounds."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def ratio(of, over):
    """Median over median."""
    return statistics.median(of) / statistics.median(over)


def table(columns, rows):
    """Lines of right-aligned columns."""
    cells = [columns, *rows]
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(columns))]
    return "\n".join("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)) for row in cells)


def in_turns(names, number):
    """Who begins moves on from round to round, so that a machine that is busy for a while slows all of them."""
    start = number % len(names)
    return names[start:] + names[:start]


def add_options(parser, rounds):
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each contender (default {rounds})")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes: does it work at all")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder for the table (.txt) and the raw rounds (.json) (default docs/results)")


def finish(out, name, text, data):
    """Print the table; write it, and everything that was measured, into the folder."""
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")
    head = f"# {machine()}, {date}, load {os.getloadavg()[0]:.1f}\n"
    print(head + text, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.txt").write_text(head + text + "\n")
    (out / f"{name}.json").write_text(json.dumps({"machine": machine(), "date": date, **data}, indent=1) + "\n")
