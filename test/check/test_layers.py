# SPDX-License-Identifier: Apache-2.0
"""A file includes only its own storey's and lower storeys' headers; no transport includes another; bench uses the public API only, but for bench/growth,
which counts the plans of ranks that no machine has."""

import re

import pytest
from files import ROOT, STOREYS, all_files, name

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
SOURCES = {".c", ".h", ".cc", ".cpp", ".cu", ".inc", ".def"}


def resolve(path, included):
    """The file an #include means, as a path below the root; None for one that is none of ours."""
    for base in (path.parent, ROOT, ROOT / "include"):
        if (base / included).is_file():
            target = (base / included).resolve()
            return target.relative_to(ROOT) if target.is_relative_to(ROOT) else None
    return None


def storey_of(relative):
    return STOREYS.index(relative.parts[0]) if relative.parts[0] in STOREYS else None


def includes():
    """(file, included file), both below the root, of all storeys."""
    for path in all_files():
        if path.suffix not in SOURCES or storey_of(path.relative_to(ROOT)) is None:
            continue
        for included in INCLUDE.findall(path.read_text(errors="replace")):
            target = resolve(path, included)
            if target is not None:
                yield path.relative_to(ROOT), target


def wrong_direction(path, target):
    mine, theirs = path.parts[0], target.parts[0]
    if theirs not in STOREYS:
        return f"{path} includes {target}, which belongs to no storey"
    if mine == "bench" and theirs not in ("bench", "include") and path.parts[:2] != ("bench", "growth"):
        return f"{path} includes {target}: bench uses the public headers only"
    if STOREYS.index(theirs) > STOREYS.index(mine) or {mine, theirs} == {"plugin", "bench"}:
        return f"{path} includes {target}: {theirs}/ is above {mine}/"
    return None


def other_transport(path, target):
    """transport/tcp may use transport/framing, transport/ip, transport/tls and what lies in transport/ itself, not transport/shm."""
    if path.parts[0] != "transport" or target.parts[0] != "transport" or len(path.parts) < 3 or len(target.parts) < 3:
        return None
    if target.parts[1] in ("framing", "ip", "tls", path.parts[1]):
        return None
    return f"{path} includes {target}: a transport does not know another"


def test_storeys():
    found = list(includes())
    assert len(found) > 20, "the check sees no includes: it looks in the wrong place"
    wrong = [text for pair in found if (text := wrong_direction(*pair))]
    assert not wrong, "\n".join(wrong)


def test_transports_do_not_know_each_other():
    wrong = [text for pair in includes() if (text := other_transport(*pair))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path, target, is_wrong", [
    ("base/a.c", "base/b.h", False), ("base/a.c", "transport/registry.h", True), ("transport/tcp/a.c", "base/b.h", False),
    ("scheduler/a.c", "plugin/torch/b.h", True), ("bench/a.c", "base/b.h", True), ("bench/growth/a.c", "scheduler/b.h", False), ("bench/a.c", "include/quoit/quoit.h", False),
    ("plugin/torch/a.cpp", "bench/b.h", True), ("base/a.c", "test/b.h", True), ("include/quoit/a.h", "base/b.h", True),
])
def test_the_check_itself(path, target, is_wrong):
    from pathlib import Path

    assert (wrong_direction(Path(path), Path(target)) is not None) == is_wrong


def test_every_storey_is_there():
    assert all((ROOT / storey).is_dir() for storey in STOREYS), [s for s in STOREYS if not (ROOT / s).is_dir()]
    assert name(ROOT / "base" / "settings.def") == "base/settings.def"


def test_locks_of_the_process_are_free_in_a_forked_child():
    """Static mutexes are base/forked's; an object's own is initialised by a call."""
    locks = re.compile(r"^.*PTHREAD_MUTEX_INITIALIZER.*$", re.M)
    found = [(path.relative_to(ROOT), line) for path in all_files() if path.suffix == ".c" and storey_of(path.relative_to(ROOT)) is not None
             for line in locks.findall(path.read_text(errors="replace"))]
    assert len(found) > 5, "the check sees no locks: it looks for the wrong thing"
    wrong = [f"{path}: {line.strip()}" for path, line in found if ".mutex = PTHREAD_MUTEX_INITIALIZER" not in line and str(path) != "base/forked.c"]
    assert not wrong, "\n".join(wrong)
