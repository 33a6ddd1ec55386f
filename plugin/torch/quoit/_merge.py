# SPDX-License-Identifier: Apache-2.0
"""Joining the timelines of several ranks.

Times in a timeline are those of its machine's monotonic clock. Ranks of one machine (one boot id) share it: nothing is to be done,
and nothing is lost. Between machines there are two sources for the difference of their clocks:

- each file says how the monotonic clock related to the time of day; that is as good as the machines' synchronisation (NTP:
  0.1 to some ms);
- collectives after which every rank knows that every other has come (barrier, allreduce, allgather, reduce_scatter, alltoall): none
  ends anywhere before it has begun everywhere. Each bounds the difference from both sides; the tightest bounds of all are a few
  network latencies apart.

The middle between the bounds is taken when they are close, else the time of day, moved into the bounds. Half their distance is the
largest possible error then.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Iterator, Optional

MEETING = {"barrier", "allreduce", "allgather", "reduce_scatter", "alltoall"}
CLOSE_NS = 2_000_000  # bounds that are closer than this beat the time of day


def _load(path: str) -> dict[str, Any]:
    if path.endswith(".partial"):
        from quoit import _C

        with tempfile.TemporaryDirectory() as directory:
            whole = os.path.join(directory, "trace.json")
            _C.trace_convert(path, whole)
            return _load(whole)
    with open(path, encoding="utf-8") as file:
        try:
            trace = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no timeline of Quoit (QUOIT_TRACE): {error}") from error
    if not isinstance(trace, dict) or not isinstance(trace.get("otherData"), dict) or "quoit" not in trace["otherData"]:
        raise ValueError(f"{path} is no timeline of Quoit (QUOIT_TRACE)")
    _check(trace, path)
    return trace


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e19 < value < 1e19


def _check(trace: dict[str, Any], path: str) -> None:
    """What is read of it below is there, and of its type: ValueError says what is not."""
    about = trace["otherData"]
    events = trace.get("traceEvents")
    what = ""
    if not isinstance(events, list):
        what = "traceEvents is no list"
    elif not isinstance(about.get("rank"), int) or not isinstance(about.get("boot"), str) or not isinstance(about.get("host"), str):
        what = "otherData does not tell rank, boot and host"
    elif not _is_number(about.get("to_real_ns")):
        what = "otherData does not tell to_real_ns"
    for number, event in enumerate(events if not what and isinstance(events, list) else []):
        good = isinstance(event, dict) and ("ts" not in event or _is_number(event["ts"]))
        if good and event.get("cat") == "collective":
            told = event.get("args")
            good = isinstance(told, dict) and isinstance(told.get("id"), str) and isinstance(told.get("sequence"), int) and "status" in told
            good = good and isinstance(event.get("name"), str) and _is_number(event.get("ts")) and _is_number(event.get("dur"))
        if not good:
            what = f"event {number} is none"
            break
    if what:
        raise ValueError(f"{path} is a damaged timeline: {what}")


def _meetings(trace: dict[str, Any]) -> Iterator[tuple[tuple[str, int], float, float]]:
    """(which, begin, end) in ns of each operation in which all ranks met."""
    for event in trace["traceEvents"]:
        if event.get("cat") != "collective" or event["name"] not in MEETING or event["args"]["status"] != "done":
            continue
        if event["args"].get("count") == 0 and event["name"] != "barrier":
            continue  # nothing to wait for
        begin = event["ts"] * 1000
        yield (event["args"]["id"], event["args"]["sequence"]), begin, begin + event["dur"] * 1000


class _Machine:
    """The timelines of one machine."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.traces: list[dict[str, Any]] = []
        self.last_begin: dict[tuple[str, int], float] = {}
        self.first_end: dict[tuple[str, int], float] = {}
        self.offset = 0.0  # ns to add to its times
        self.bounds: Optional[tuple[float, float]] = None

    def add(self, trace: dict[str, Any]) -> None:
        self.traces.append(trace)
        for which, begin, end in _meetings(trace):
            self.last_begin[which] = max(begin, self.last_begin.get(which, begin))
            self.first_end[which] = min(end, self.first_end.get(which, end))

    @property
    def to_real(self) -> float:
        return float(self.traces[0]["otherData"]["to_real_ns"])

    def align(self, reference: "_Machine") -> None:
        self.offset = self.to_real - reference.to_real
        both = self.last_begin.keys() & reference.last_begin.keys()
        if not both:
            return
        low = max(reference.last_begin[which] - self.first_end[which] for which in both)
        high = min(reference.first_end[which] - self.last_begin[which] for which in both)
        self.bounds = (min(low, high), max(low, high))
        if high - low < CLOSE_NS:
            self.offset = (low + high) / 2
        else:
            self.offset = min(max(self.offset, low), high)


def merge(paths: list[str], output: str) -> list[dict[str, Any]]:
    """Write one timeline. Returns, for each machine, what was done to its clock."""
    machines: dict[str, _Machine] = {}
    ranks: dict[int, str] = {}
    for path in paths:
        trace = _load(path)
        about = trace["otherData"]
        if about["rank"] in ranks:
            raise ValueError(f"{path} and {ranks[about['rank']]} are both of rank {about['rank']}")
        ranks[about["rank"]] = path
        machines.setdefault(about["boot"], _Machine(about["boot"])).add(trace)
    every = list(machines.values())
    for machine in every[1:]:
        machine.align(every[0])
    events = []
    starts = [
        event["ts"] + machine.offset / 1000
        for machine in every
        for trace in machine.traces
        for event in trace["traceEvents"]
        if "ts" in event
    ]
    origin = min(starts, default=0.0)
    for machine in every:
        for trace in machine.traces:
            for event in trace["traceEvents"]:
                if "ts" in event:
                    event["ts"] = round(event["ts"] + machine.offset / 1000 - origin, 3)
                events.append(event)
    clocks = [
        {
            "boot": machine.boot,
            "host": machine.traces[0]["otherData"]["host"],
            "ranks": sorted(trace["otherData"]["rank"] for trace in machine.traces),
            "offset_ns": round(machine.offset),
            "bounds_ns": None if machine.bounds is None else [round(bound) for bound in machine.bounds],
        }
        for machine in every
    ]
    with open(output, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"clocks": clocks}}, file)
    return clocks


def explain(clock: dict[str, Any]) -> str:
    """A line for a person."""
    ranks = ", ".join(str(rank) for rank in clock["ranks"])
    who = f"{clock['host']} (rank{'s' if len(clock['ranks']) > 1 else ''} {ranks})"
    if clock["offset_ns"] == 0 and clock["bounds_ns"] is None:
        return f"{who}: its clock is the timeline's"
    if clock["bounds_ns"] is None:
        return f"{who}: joined by the time of day alone, as exact as the machines' clocks are synchronised"
    low, high = clock["bounds_ns"]
    return f"{who}: joined to within {max(high - clock['offset_ns'], clock['offset_ns'] - low) / 1000:.1f} us by collectives that all ranks met in"
