# SPDX-License-Identifier: Apache-2.0
"""What a user asks when something is slow or hangs: history, the command `quoit debug`, timelines and their merging."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from launcher import SLOW, argument, directory, meet, message_of, run, wait_for

import quoit
from quoit import _merge
from quoit.__main__ import main


def history_worker(rank, size):
    assert quoit.history() == [] or quoit.history()[0]["operation"] == "barrier"
    dist.all_reduce(torch.ones(321), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(7, dtype=torch.float64), src=1)
    if rank == 0:
        dist.send(torch.ones(5), 1, tag=9)
    elif rank == 1:
        dist.recv(torch.ones(5), 0, tag=9)
    operations = quoit.history()
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(3), group=group)
    return operations, quoit.history(group) if rank < 2 else None


def test_history():
    for rank, (operations, of_group) in enumerate(run(3, history_worker)):
        named = {operation["operation"]: operation for operation in operations}
        assert named["allreduce"]["count"] == 321 and named["allreduce"]["op"] == "max" and named["allreduce"]["dtype"] == "float32"
        assert named["broadcast"]["root"] == 1 and named["broadcast"]["dtype"] == "float64"
        if rank < 2:
            message = named["send" if rank == 0 else "recv"]
            assert (message["count"], message["peer"], message["tag"]) == (5, 1 - rank, 9)
            assert [o["count"] for o in of_group if o["operation"] == "allreduce"] == [3]
        for operation in operations:
            assert operation["status"] == "done"
            assert operation["issued"] <= operation["started"] + 1e-6 <= operation["ended"] + 2e-6
            assert abs(operation["issued"] - time.time()) < 600
        assert [o["issued"] for o in operations] == sorted(o["issued"] for o in operations)


def failing_worker(rank, size):
    from datetime import timedelta

    dist.all_reduce(torch.ones(3))
    if rank == 0:
        dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=200))
        message_of(lambda: dist.all_reduce(torch.ones(4)))
    meet("failed", rank, size)  # not by the store, which ends with rank 0
    return quoit.history()


def test_history_after_failure():
    operations = run(2, failing_worker)[0]
    assert operations[-1]["count"] == 4 and operations[-1]["status"] not in ("done", "running"), operations


def hanging_worker(rank, size):
    place = directory()
    (place / f"pid{rank}").write_text(str(os.getpid()))
    dist.all_reduce(torch.ones(10))
    (place / f"ready{rank}").touch()
    if rank == 1:
        while not (place / "go").exists():
            time.sleep(0.01)
    dist.all_reduce(torch.ones(77))


def test_debug_of_a_hanging_rank(tmp_path, capfd):
    def look(processes):
        try:
            wait_for(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists())
            pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in range(2)]

            def waits():
                assert main(["debug", str(pids[0])]) == 0
                text = capfd.readouterr().out
                return text if "HAS NOT ARRIVED" in text and "    waiting for rank 1 (" in text else None

            text = wait_for(waits)
            assert "(float32, sum, 77 elements)" in text and f"pid {pids[1]})" in text, text
            os.kill(pids[0], signal.SIGSTOP)
            try:
                assert main(["debug", "--json", str(pids[0]), str(pids[1])]) == 0
                stopped, idle = json.loads(capfd.readouterr().out)
            finally:
                os.kill(pids[0], signal.SIGCONT)
            assert stopped["communicators"][0]["running"]["count"] == 77
            assert idle["communicators"][0]["running"] is None
            assert idle["communicators"][0]["operations"][-1]["count"] == 10
        finally:
            (tmp_path / "go").touch()

    run(2, hanging_worker, meanwhile=look, directory=tmp_path)


def flight_worker(rank, size):
    """Rank 2 calls something else in a group, and does not come to the last collective of the default one."""
    from datetime import timedelta

    for count in range(70):  # more than a dump holds
        dist.all_reduce(torch.ones(count + 1))
    group, after = dist.new_group(group_desc="small"), dist.new_group()
    call = (lambda: dist.broadcast(torch.ones(5), 0, group=group)) if rank == 2 else (lambda: dist.all_reduce(torch.ones(5), group=group))
    message_of(lambda: [call(), dist.barrier(group)], dist.DistBackendError)
    dist.barrier()
    meet("all", rank, size)
    if rank < 2:
        dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=400))
        message_of(lambda: dist.all_reduce(torch.ones(77)), dist.DistBackendError)
    meet("failed", rank, size)
    dist.barrier(after)  # rank 2 hears of it


def test_flight_recorder(tmp_path, capfd):
    """PyTorch's analyzer finds in the dumps who did not come, and who called something else."""
    run(3, flight_worker, env={"QUOIT_DUMP": str(tmp_path / "dump.json")})
    dumps = [str(tmp_path / f"dump.{rank}.json") for rank in range(3)]
    assert main(["flight-recorder", *dumps, "-o", str(tmp_path / "flight")]) == 0
    assert "ranks 0, 1, 2" in capfd.readouterr().out
    words = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path / "flight")]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * SLOW)
    assert done.returncode == 0, done.stdout
    assert "Not all ranks joining collective" in done.stdout and "missing ranks: {2}" in done.stdout and "input sizes: [[77]]" in done.stdout, done.stdout
    assert "Error type: COLLECTIVE_TYPE_MISMATCH" in done.stdout and "'broadcast'" in done.stdout and "'all_reduce'" in done.stdout, done.stdout
    (tmp_path / "other.json").write_text("{}\n")
    assert main(["flight-recorder", str(tmp_path / "other.json"), "-o", str(tmp_path / "flight")]) == 1
    assert "other.json is no dump of Quoit" in capfd.readouterr().err


def test_debug_of_what_is_not_there(capfd):
    assert main(["debug", str(1 << 30)]) == 1
    assert "it must live, and belong to the same user" in capfd.readouterr().err


def test_command():
    done = subprocess.run([sys.executable, "-m", "quoit", "--help"], capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 0 and "debug" in done.stdout and "merge-trace" in done.stdout


def trace_worker(rank, size):
    path = os.path.join(argument(), "call.json")
    with quoit.trace(path):
        assert "a trace runs already" in message_of(lambda: quoit.trace(path), ValueError)
        for _ in range(3):
            dist.all_reduce(torch.ones(100000))
    dist.all_reduce(torch.ones(5))


@pytest.mark.parametrize("by_setting", [False, True], ids=["call", "setting"])
def test_timeline(tmp_path, by_setting):
    settings = {"QUOIT_TRACE": str(tmp_path / "all-%r.json")} if by_setting else {}
    run(2, counted_worker if by_setting else trace_worker, argument=str(tmp_path), env=settings)
    names = [f"all-{rank}.json" if by_setting else f"call.{rank}.json" for rank in range(2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for rank, name in enumerate(names):
        trace = json.loads((tmp_path / name).read_text())
        operations = [event for event in trace["traceEvents"] if event.get("cat") == "collective"]
        assert {event["pid"] for event in trace["traceEvents"]} == {rank}
        assert [event["args"]["count"] for event in operations if event["name"] == "allreduce"] == [100000] * 3
        steps = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
        assert {"start-up wait", "reduce_window"} <= steps or {"start-up wait", "reduce"} <= steps, steps
        assert trace["otherData"]["complete"] is True
    clocks = _merge.merge([str(tmp_path / name) for name in names], str(tmp_path / "merged.json"))
    assert len(clocks) == 1 and clocks[0]["ranks"] == [0, 1]
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert {event["pid"] for event in merged["traceEvents"]} == {0, 1}
    check_overlap(merged)
    assert main(["merge-trace", *(str(tmp_path / name) for name in names), "-o", str(tmp_path / "again.json")]) == 0
    assert main(["merge-trace", *(str(tmp_path / names[0]) for _ in range(2)), "-o", str(tmp_path / "again.json")]) == 1


def counted_worker(rank, size):
    for _ in range(3):
        dist.all_reduce(torch.ones(100000))


def check_overlap(merged):
    """No allreduce ends on a rank before it has begun on all."""
    operations = {}
    for event in merged["traceEvents"]:
        if event.get("cat") == "collective" and event["name"] in ("allreduce", "barrier"):
            operations.setdefault(event["args"]["sequence"], []).append((event["ts"], event["ts"] + event["dur"]))
    for sequence, spans in operations.items():
        if len(spans) == 2:
            assert max(begin for begin, _ in spans) <= min(end for _, end in spans) + 0.01, (sequence, spans)


def made_up(rank, boot, shift, to_real, latency=50.0):
    """A timeline of 5 allreduces a millisecond apart, by a clock that is `shift` us off."""
    events = [
        {"ph": "X", "pid": rank, "tid": 1, "name": "allreduce", "cat": "collective", "ts": 1000.0 * i + 10 * rank + shift,
         "dur": latency, "args": {"id": "1", "sequence": i, "count": 5, "status": "done"}}
        for i in range(1, 6)
    ]
    about = {"quoit": "0.1.0", "rank": rank, "pid": 1, "host": f"host{boot}", "boot": boot, "to_real_ns": to_real}
    return {"traceEvents": events, "otherData": about}


@pytest.mark.parametrize("latency", [50.0, 5000.0], ids=["close", "wide"])
def test_clocks_of_two_machines(tmp_path, latency):
    """The second machine's clock is 7 s off, and its time of day 3 ms more."""
    for rank, boot, shift, to_real in ((0, "a", 0, 0), (1, "a", 0, 0), (2, "b", 7e6, int(-7e9 + 3e6))):
        (tmp_path / f"{rank}.json").write_text(json.dumps(made_up(rank, boot, shift, to_real, latency)))
    clocks = _merge.merge([str(tmp_path / f"{rank}.json") for rank in range(3)], str(tmp_path / "out.json"))
    error = abs(clocks[1]["offset_ns"] + 7_000_000_000)
    low, high = clocks[1]["bounds_ns"]
    assert low <= -7_000_000_000 <= high
    assert error <= max(high - clocks[1]["offset_ns"], clocks[1]["offset_ns"] - low)
    assert error <= (50_000 if latency == 50 else 5_000_000)
    assert "joined to within" in _merge.explain(clocks[1]) and "is the timeline's" in _merge.explain(clocks[0])


ODD = [None, True, -1, 0, 1e300, 10**400, float("nan"), float("inf"), "", "1", "\ud800", [], {}, [[]], {"ts": 1}]


def places_of(value, path=()):
    """Paths to all that lies within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from places_of(each, (*path, key))


def test_damaged_timelines(tmp_path):
    """A file that is no timeline, or no sound one, is refused by name; none ends in another exception, and what is merged is JSON."""
    draw = random.Random(int(os.environ.get("QUOIT_TEST_SEED", "20240611")))
    sound, other, output = tmp_path / "sound.json", tmp_path / "other.json", tmp_path / "out.json"
    sound.write_text(json.dumps(made_up(0, "a", 0, 0)))
    merged = 0
    for _ in range(1500):
        trace = made_up(1, "b", 5.0, 7)
        for place in draw.choices(list(places_of(trace)), k=draw.randint(1, 2)):
            at = trace
            try:
                for key in place[:-1]:
                    at = at[key]
                if draw.random() < 0.3:
                    del at[place[-1]]
                else:
                    at[place[-1]] = draw.choice(ODD)
            except (KeyError, TypeError, IndexError):
                continue  # the first change took it away
        data = json.dumps(trace).encode()
        if draw.random() < 0.3:
            at = draw.randrange(len(data))
            data = data[:at] + bytes(draw.randrange(256) for _ in range(draw.randrange(4))) + data[at + draw.randrange(4) :]
        other.write_bytes(data)
        try:
            clocks = _merge.merge([str(sound), str(other)], str(output))
        except ValueError as error:
            assert "other.json" in str(error), (data, error)
            continue
        assert all(_merge.explain(clock) for clock in clocks)
        assert "traceEvents" in json.loads(output.read_text()), data
        merged += 1
    assert 0 < merged < 1500
    other.write_bytes(b"[" * 100000)
    with pytest.raises(ValueError, match="other.json"):
        _merge.merge([str(other)], str(output))
