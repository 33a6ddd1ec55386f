# SPDX-License-Identifier: Apache-2.0
"""Every setting is documented (docs/settings.md is what docs/make_settings.py writes) and read by some code."""

import re
import subprocess
import sys

from files import ROOT, all_files

SCRIPT = ROOT / "docs" / "make_settings.py"


def names():
    return re.findall(r"^SETTING\((\w+),", (ROOT / "base" / "settings.def").read_text(), re.M)


def test_document_is_up_to_date():
    made = subprocess.run([sys.executable, str(SCRIPT), "--print"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert (ROOT / "docs" / "settings.md").read_text() == made.stdout, "docs/settings.md is old: run python docs/make_settings.py"


def test_document_has_every_setting():
    text = (ROOT / "docs" / "settings.md").read_text()
    assert len(names()) > 10
    assert [n for n in names() if f"`QUOIT_{n}`" not in text] == []


def test_every_setting_is_read():
    code = "\n".join(path.read_text(errors="replace") for path in all_files()
                     if path.suffix in {".c", ".cpp"} and path.relative_to(ROOT).parts[0] in ("base", "transport", "scheduler", "plugin"))
    unread = [n for n in names() if not re.search(rf'\bSETTING_{n}\b|"{n}"', code)]
    assert unread == [], f"nothing reads {unread}"
