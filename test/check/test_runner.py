# SPDX-License-Identifier: Apache-2.0
"""How test/run counts: cases of GoogleTest and pytest, skips with their reasons, and which of these are failures."""

import re
import sys

import pytest

from files import ROOT, text_files

sys.path.insert(0, str(ROOT / "test" / "support"))
import runner  # noqa: E402

GOOGLETEST = """<testsuites><testsuite name="Ring">
<testcase name="Full" status="run" result="completed" classname="Ring"/>
<testcase name="Long" status="notrun" result="suppressed" classname="Ring"/>
<testcase name="Six" status="run" result="skipped" classname="Ring"><skipped message="no IPv6
here"/></testcase>
<testcase name="Torn" status="run" result="completed" classname="Ring"><failure message="1 is not 2"/></testcase>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest">
<testcase classname="test.torch.test_life" name="test_fork"/>
<testcase classname="test.torch.test_life" name="test_route"><skipped type="pytest.skip" message="needs root"/></testcase>
<testcase classname="test.torch.test_life" name="test_mute"><skipped/></testcase>
<testcase classname="test.torch.test_life" name="test_setup"><error message="no such fixture"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(name="outcome")
def read(tmp_path):
    outcome = runner.Outcome()
    for name, text, prefix in (("c.xml", GOOGLETEST, "test_ring:"), ("py.xml", PYTEST, "")):
        (tmp_path / name).write_text(text)
        runner.read_junit(tmp_path / name, outcome, prefix)
    return outcome


def test_every_case_is_counted(outcome):
    assert outcome.passed == 2
    assert [name for name, _ in outcome.failures] == ["test_ring:Ring.Torn", "test.torch.test_life.test_setup"]
    assert outcome.skips == [("test_ring:Ring.Six", "no IPv6 here"), ("test.torch.test_life.test_route", "needs root"),
                             ("test.torch.test_life.test_mute", "no reason given")]


def test_skips_are_told_and_judged(outcome, capsys, monkeypatch):
    monkeypatch.setattr(runner, "allowed_skips", lambda: ["*::test_ring:Ring.Six"])
    results = {"c": runner.Outcome(passed=1), "torch": outcome}
    assert runner.judge_skips(results, strict=True) == [("torch::test.torch.test_life.test_route", "needs root"), ("torch::test.torch.test_life.test_mute", "no reason given")]
    told = capsys.readouterr().out.splitlines()
    assert told == ["skipped: no IPv6 here: torch::test_ring:Ring.Six", "skipped (not allowed here): needs root: torch::test.torch.test_life.test_route",
                    "skipped (not allowed here): no reason given: torch::test.torch.test_life.test_mute"]
    assert runner.judge_skips(results, strict=False) == []
    assert "not allowed" not in capsys.readouterr().out


def test_allowed_skips_are_tests_and_have_reasons():
    """A line whose test is gone would allow whatever is named so next."""
    lines = [line for line in (ROOT / "test" / "allowed_skips.txt").read_text().splitlines() if line and not line.startswith("#")]
    words = {word for path in text_files() if path.suffix in (".cc", ".py") for word in re.findall(r"\w+", path.read_text())}
    assert lines and all(re.fullmatch(r"(\*|[a-z-]+)::\S+ \| \S.*", line) for line in lines), lines
    gone = [line for line in lines if re.findall(r"\w+", line.partition(" | ")[0])[-1] not in words]
    assert not gone, gone
    assert len(lines) < 10, "the list is to be short"
