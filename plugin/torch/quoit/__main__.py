# SPDX-License-Identifier: Apache-2.0
"""The command ``quoit`` (or ``python -m quoit``).

    quoit debug PID [PID ...]                      what a live process does, without its help
    quoit merge-trace a.json b.json -o out.json    one timeline out of those of several ranks
    quoit flight-recorder dump.*.json -o folder    dumps of a failure, for the analyzer of PyTorch's flight recorder
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Optional, Sequence

from quoit import _C, _flight, _merge


def _debug(options: argparse.Namespace) -> int:
    failed = 0
    reports = []
    for pid in options.pid:
        try:
            report = _C.process_history(pid, options.json)
        except Exception as error:
            print(str(error), file=sys.stderr)
            failed += 1
            continue
        if options.json:
            reports.append(json.loads(report))
        else:
            sys.stdout.write(report)
    if options.json:
        json.dump(reports, sys.stdout, indent=1)
        print()
    return 1 if failed else 0


def _merge_trace(options: argparse.Namespace) -> int:
    try:
        clocks = _merge.merge(options.trace, options.output)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"quoit merge-trace: {error}", file=sys.stderr)
        return 1
    for clock in clocks:
        print(_merge.explain(clock))
    return 0


def _flight_recorder(options: argparse.Namespace) -> int:
    try:
        ranks = _flight.convert(options.dump, options.output)
    except (OSError, ValueError) as error:
        print(f"quoit flight-recorder: {error}", file=sys.stderr)
        return 1
    print(f"ranks {', '.join(map(str, ranks))}; now: python -m torch.distributed.flight_recorder.fr_trace {options.output}")
    return 0


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command `quoit`: parse its arguments, and do what they ask; returns the exit status."""
    parser = argparse.ArgumentParser(prog="quoit", description="Look at processes that use Quoit, and at what they recorded.")
    commands = parser.add_subparsers(required=True, metavar="command")
    debug = commands.add_parser("debug", help="what a live process of this machine and user does: groups, members, operations")
    debug.add_argument("pid", type=int, nargs="+")
    debug.add_argument("--json", action="store_true", help="as JSON, a list with one entry a process")
    debug.set_defaults(run=_debug)
    merging = commands.add_parser("merge-trace", help="join the timelines of several ranks (QUOIT_TRACE), .partial ones of killed ranks too")
    merging.add_argument("trace", nargs="+")
    merging.add_argument("-o", "--output", required=True)
    merging.set_defaults(run=_merge_trace)
    recording = commands.add_parser("flight-recorder", help="dumps of a failure (QUOIT_DUMP=<name>.json) for the analyzer of PyTorch's flight recorder")
    recording.add_argument("dump", nargs="+")
    recording.add_argument("-o", "--output", required=True, help="a folder for one file a rank")
    recording.set_defaults(run=_flight_recorder)
    options = parser.parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
