# SPDX-License-Identifier: Apache-2.0
"""Dumps of a failure (``QUOIT_DUMP=dump.json``, a file a rank) as files of PyTorch's flight recorder, so that its analyzer reads them.

The analyzer compares what the ranks of each group called, collective by collective, and tells who is missing or called something else. It
knows names of calls by their backend, and this backend is not among those: here all are called gloo's. Sends and recvs, which it compares
only inside of coalesced groups, are left out.
"""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

VERSION = "2.10"  # of the format; what is written here has been so since 2.7
NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather_v",
    "alltoall": "all_to_all_single",
    "alltoallv": "all_to_all_v_single",
    "gatherv": "gather",
    "scatterv": "scatter",
}
Process = tuple[str, int]  # host name, pid


def _load(path: str) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        try:
            blocks = [json.loads(line) for line in file if line.strip()]
            for block in blocks:
                block["process"] = (block["hostname"], block["pid"])
                block["processes"] = [(member["hostname"], member["pid"]) for member in block["members"]]
                block["collectives"] = [operation for operation in block["operations"] if "sequence" in operation]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is no dump of Quoit in JSON (QUOIT_DUMP=<name>.json): {error!r}") from error
    return blocks


def _entry(block: dict[str, Any], operation: dict[str, Any], group: tuple[str, str], number: int) -> dict[str, Any]:
    name, count = operation["operation"], operation["count"]
    inputs = outputs = [] if count is None or name == "barrier" else [count]
    if name == "allgather":
        outputs = [count * block["size"]]
    if name == "reduce_scatter":
        inputs = [count * block["size"]]
    times = {key: None if operation[key] is None else int(operation[key] * 1e9) for key in ("issued", "started", "ended")}
    done = operation["status"] == "done"
    return {
        "record_id": number,
        "op_id": number,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": operation["sequence"],
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": f"gloo:{NAMES.get(name, name)}",
        "input_sizes": [inputs],
        "input_dtypes": [operation["dtype"]],
        "output_sizes": [outputs],
        "output_dtypes": [operation["dtype"]],
        "state": "completed" if done else "started" if times["started"] else "scheduled",
        "time_created_ns": times["issued"],
        "time_discovered_started_ns": times["started"],
        "time_discovered_completed_ns": times["ended"] if done else None,
        "retired": done,
        "frames": [],
    }


def convert(paths: list[str], directory: str) -> list[int]:
    """Write ``directory/rank_<n>`` for each process of the dumps, n in the largest group. ``ValueError`` when there is none that holds all."""
    blocks = [block for path in paths for block in _load(path)]
    if not blocks:
        raise ValueError("these dumps hold no group")
    largest = max(blocks, key=lambda block: int(block["size"]))
    ranks: dict[Process, int] = {process: rank for rank, process in enumerate(largest["processes"])}
    strangers = {process for block in blocks for process in (block["process"], *block["processes"]) if process not in ranks}
    if strangers:
        host, pid = min(strangers)
        raise ValueError(f"the largest group of these dumps, {largest['communicator']}, does not hold pid {pid} of {host}: its ranks cannot be told")
    first: dict[str, int] = {}  # of each group, what all of them still remember
    for block in blocks:
        oldest = min((operation["sequence"] for operation in block["collectives"]), default=0)
        first[block["communicator"]] = max(first.get(block["communicator"], 0), oldest)
    os.makedirs(directory, exist_ok=True)
    for process, rank in ranks.items():
        own = {block["communicator"]: block for block in blocks if block["process"] == process}
        if not own:
            continue
        groups, entries = {}, []
        for name, block in own.items():
            group = (name, "default_pg" if block["size"] == largest["size"] else "undefined")
            groups[name] = {"name": name, "desc": group[1], "ranks": str([ranks[member] for member in block["processes"]])}
            entries += [(operation["issued"], block, operation, group) for operation in block["collectives"] if operation["sequence"] >= first[name]]
        entries.sort(key=lambda entry: entry[0])
        dump = {
            "version": VERSION,
            "pg_config": groups,
            "pg_status": {},
            "entries": [_entry(block, operation, group, number) for number, (_, block, operation, group) in enumerate(entries)],
        }
        with open(os.path.join(directory, f"rank_{rank}"), "wb") as file:
            pickle.dump(dump, file)
    return sorted(ranks[process] for process in {block["process"] for block in blocks})
