# SPDX-License-Identifier: Apache-2.0
"""Every row of docs/failures.md names tests that there are: programs and their cases, files of pytest and their functions."""

import re

from files import ROOT

PAGE = ROOT / "docs" / "failures.md"
CASE = re.compile(r"^\s*TEST(?:_F|_P)?\((\w+), (\w+)\)", re.M)


def rows():
    """(failure, what its last cell says)"""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
    table = [[cell.strip() for cell in row] for row in cells if len(row) == 5]
    assert table[0] == ["failure", "what the ranks see", "within", "what survives", "shown by"], table[0]
    return [(row[0], row[4]) for row in table[1:] if set(row[0]) != {"-"}]


def programs():
    """Names of ctest: programs, and further runs of them."""
    return set().union(*(re.findall(r"quoit_(?:test|test_program|add_test)\((\w[\w${}]*)", path.read_text()) for path in ROOT.glob("test/*/CMakeLists.txt")))


def cases():
    """Suite.Case of all C++ tests."""
    return {f"{suite}.{case}" for path in ROOT.glob("test/*/*.cc") for suite, case in CASE.findall(path.read_text())}


def matches(pattern, names):
    wanted = re.compile(re.escape(pattern).replace(r"\*", ".*"))
    return any(wanted.fullmatch(name) or wanted.fullmatch(re.sub(r"\$\{\w+\}", "", name)) for name in names)


def check(word, known, file):
    """(what is wrong with a word in backticks, or None; the file that following functions are looked for in)"""
    if re.fullmatch(r"test_\w+\.py|test/[\w/]+\.py", word):
        paths = list(ROOT.glob(f"test/*/{word}")) if "/" not in word else [path for path in [ROOT / word] if path.exists()]
        return (None, paths[0]) if len(paths) == 1 else (f"no file {word}", None)
    if re.fullmatch(r"[A-Z]\w*\.[\w*]+", word):
        return (None if matches(word, known["cases"]) else f"no case {word}"), file
    if re.fullmatch(r"test_fuzz_\*|test_\w+\*?", word):
        functions = re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M) if file else []
        if word in functions:
            return None, file
        return (None if matches(word, known["programs"]) else f"neither a program nor a function of {file and file.name} is {word}"), file
    return f"'{word}' names no test", file


def test_failures_are_shown_by_tests():
    known = {"programs": programs(), "cases": cases()}
    found, wrong = rows(), []
    assert len(found) > 30, found
    for failure, cell in found:
        words, file = re.findall(r"`([^`]+)`", cell), None
        if not words:
            wrong.append(f"{failure}: shown by nothing")
        for word in words:
            problem, file = check(word, known, file)
            if problem:
                wrong.append(f"{failure}: {problem}")
    assert not wrong, "\n".join(wrong)
