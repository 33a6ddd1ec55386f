#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write docs/settings.md from base/settings.def.

    python docs/make_settings.py            writes the file
    python docs/make_settings.py --print    prints it
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r'^SETTING\(\s*(\w+)\s*,\s*(\w+)\s*,\s*"((?:[^"\\]|\\.)*)"\s*,\s*"((?:[^"\\]|\\.)*)"\s*,\s*"((?:[^"\\]|\\.)*)"\s*,\s*"((?:[^"\\]|\\.)*)"\s*\)', re.M)

HEAD = """# Settings

This page is made from `base/settings.def` by `docs/make_settings.py`.

A setting is a variable `QUOIT_<NAME>` of the environment, read once, when the library is first used. A bad value makes the first
communicator fail with a text that names the variable, the value and what is allowed; a variable `QUOIT_...` that is no setting is
warned about once. From C, `quoit_setting_set("NAME", value)` overrides a setting before first use; `quoit.settings()` in Python and
`quoit_settings_print` in C print all of them with the values in force. All ranks should have the same values: those that plans
depend on are taken from rank 0.

Sizes take `K`, `M`, `G` (1024-based); times take `us`, `ms`, `s`, `min`, and count milliseconds without a suffix unless the unit
says otherwise; yes/no settings take `0/1`, `no/yes`, `off/on`, `false/true`.

| Setting | Default | Allowed | What it does |
|---|---|---|---|
"""


def cell(text):
    return text.replace("|", "\\|")


def document():
    source = (ROOT / "base" / "settings.def").read_text()
    rows = ROW.findall(source)
    if len(rows) != len(re.findall(r"^SETTING\(", source, re.M)):
        raise SystemExit("make_settings: some rows of base/settings.def are written in a way this script cannot read")
    lines = []
    for name, kind, unit, fallback, allowed, text in rows:
        shown = f"`{fallback}`" if fallback else "(empty)"
        what = text + (f" ({unit})" if unit and kind == "INT" and unit not in text else "")
        lines.append(f"| `QUOIT_{name}` | {cell(shown)} | {cell(allowed)} | {cell(what)} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(document())
    else:
        (ROOT / "docs" / "settings.md").write_text(document())
