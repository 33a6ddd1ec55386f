# SPDX-License-Identifier: Apache-2.0
"""The runner itself: what a machine shares with this one and what not, exit statuses, time limits, and that nothing stays behind."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import LONG, ROOT, SLOW

import machine as machine_module


def test_statuses_outputs_and_time_limits(alone):
    done = alone.call(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.status, done.out, done.err) == (7, "out\n", "err\n"), done.explain()
    assert alone.call(["sh", "-c", "kill -9 $$"]).status == -9
    assert alone.call(["/no/such/program"]).status == 127
    began = time.monotonic()
    done = alone.call(["sleep", "600"], timeout=0.3)
    assert done.status is None and time.monotonic() - began < 60, done.explain()


def test_the_root_is_shared_and_what_is_written_is_lost(alone, tmp_path):
    (tmp_path / "here").write_text("from outside")
    done = alone.call(["sh", "-c", 'cat here && echo changed >here && cat here && echo >"$0"', str(tmp_path / "new")], cwd=str(tmp_path))
    assert (done.status, done.out) == (0, "from outsidechanged\n"), done.explain()
    assert (tmp_path / "here").read_text() == "from outside" and not (tmp_path / "new").exists()


def test_two_devices_and_netem(alone):
    links = alone.check("rdma", "link", "show")
    assert "rxe0/1 state ACTIVE" in links and "rxe1/1 state ACTIVE" in links, links
    alone.check("tc", "qdisc", "add", "dev", "net0", "root", "netem", "delay", "1ms")
    alone.check("tc", "qdisc", "del", "dev", "net0", "root")


if LONG:  # another machine

    def test_machines_die_with_their_maker():
        """Also when it is killed. The command in the machine tells that it has come up; the machine's qemu is the child of its maker."""
        words = [sys.executable, ROOT / "test" / "support" / "machine.py", "--", "sh", "-c", "echo up; sleep 600"]
        maker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert maker.stdout.readline() == "up\n"
            children = Path(f"/proc/{maker.pid}/task/{maker.pid}/children").read_text().split()
            assert len(children) == 1, children
        finally:
            maker.kill()
            maker.wait()
            maker.stdout.close()
        deadline = time.monotonic() + 10 * SLOW
        while Path(f"/proc/{children[0]}/exe").exists() and time.monotonic() < deadline:  # a zombie has none
            time.sleep(0.02)
        assert not Path(f"/proc/{children[0]}/exe").exists()


def test_what_cannot_be_is_an_error(monkeypatch):
    with pytest.raises(ValueError, match="1 or 2"):
        machine_module.Machines(3)
    monkeypatch.setenv("QUOIT_TEST_ACCEL", "xen")
    why = machine_module.why_unavailable()
    if why:
        pytest.skip(why)
    with pytest.raises(machine_module.MachineError, match="(?i)xen"):
        with machine_module.Machines():
            pass


def test_wrong_usage():
    assert subprocess.call([sys.executable, ROOT / "test" / "support" / "machine.py", "--timeout", "5", "--"], stderr=subprocess.DEVNULL) == 2
