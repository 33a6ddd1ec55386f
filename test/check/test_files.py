# SPDX-License-Identifier: Apache-2.0
"""Licences, lengths, white space, and that the project speaks of itself alone."""

import re

from files import ROOT, all_files, code_files, name, text_files

LONGEST = 800
# Lines of other hands, or written by a program.
LONG_BY_NATURE = re.compile(r"(_vectors\.inc|\.json|\.tsv|LICENSE|docs/results/.*)$")
# Put together here, so that this file does not contain what it looks for.
FOREIGN = [r"/wor" + r"k/", r"\.\./sha" + r"red\b", r"\bsha" + r"red/(DES|ENG|STY|TOR|USE)", "DESIGN" + r"\.md", "ENGINE" + r"\.md", "STYLE" + r"\.md",
           r"\bTODO\b(?!s)", r"\bFIXME\b", r"\bXXX\b"]


def test_every_source_names_its_licence():
    missing = [name(path) for path in code_files() if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(path.read_text(errors="replace").splitlines()[:5])]
    assert not missing, missing


def test_no_file_is_too_long():
    long = [f"{name(path)}: {count} lines" for path in code_files() if not LONG_BY_NATURE.search(name(path))
            if (count := len(path.read_text(errors="replace").splitlines())) > LONGEST]
    assert not long, f"more than {LONGEST} lines: {long}"


def test_white_space():
    wrong = []
    for path in text_files():
        if LONG_BY_NATURE.search(name(path)):
            continue
        text = path.read_text(errors="replace")
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip(" \t\r"):
                wrong.append(f"{name(path)}:{number}: white space at the end of the line")
            if "\t" in line and path.suffix in {".c", ".h", ".cc", ".cpp", ".py"}:
                wrong.append(f"{name(path)}:{number}: tab")
        if text and not text.endswith("\n"):
            wrong.append(f"{name(path)}: no newline at the end")
        if text.endswith("\n\n"):
            wrong.append(f"{name(path)}: empty line at the end")
    assert not wrong, "\n".join(wrong)


def test_the_project_speaks_of_itself_alone():
    wrong = []
    for path in text_files():
        if path == ROOT / "test" / "check" / "test_files.py" or path.name == "LICENSE":
            continue
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            wrong += [f"{name(path)}:{number}: {line.strip()[:120]}" for pattern in FOREIGN if re.search(pattern, line)]
    assert not wrong, "\n".join(wrong)


def test_nothing_large_or_built_is_in_the_tree():
    wrong = [f"{name(path)}: {path.stat().st_size} bytes" for path in all_files()
             if path.stat().st_size > 2_000_000 or path.suffix in {".o", ".so", ".a", ".pyc", ".whl"}]
    assert not wrong, wrong
