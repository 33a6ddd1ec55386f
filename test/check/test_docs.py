# SPDX-License-Identifier: Apache-2.0
"""The pages lead somewhere: links and their anchors, paths and settings that a page names are there."""

import re

from files import ROOT, all_files, name

PAGES = [path for path in all_files() if path.suffix == ".md"]
TOP = "base|bench|docs|examples|include|plugin|scheduler|test|transport"
SETTINGS = {f"QUOIT_{setting}" for setting in re.findall(r"^SETTING\((\w+)", (ROOT / "base" / "settings.def").read_text(), re.M)}


def anchors(page):
    """As the usual viewers make them of headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def wrong_link(page, link):
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or ROOT not in [target, *target.parents]:
        return f"there is no {path}"
    return f"{name(target)} has no heading #{anchor}" if anchor and anchor not in anchors(target) else None


def wrong_path(path):
    """`path` may have wildcards. What a build makes, and what stands for something else (<name>), is not looked for."""
    return None if "<" in path or any(ROOT.glob(path)) else f"there is no {path}"


def test_links():
    found = [(page, link) for page in PAGES for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert len(found) > 50, "the check sees no links: it looks in the wrong place"
    wrong = [f"{name(page)}: ({link}): {text}" for page, link in found if (text := wrong_link(page, link))]
    assert not wrong, "\n".join(wrong)


def test_paths():
    """In backticks and in blocks of commands."""
    wrong = []
    for page in PAGES:
        for code in re.findall(r"`[^`\n]+`|```.*?```", page.read_text(), re.S):
            for path in re.findall(rf"(?<![\w/.<>-])((?:{TOP})/[\w./*<>-]*[\w*>])", code):
                if text := wrong_path(path):
                    wrong.append(f"{name(page)}: {code[:60]}: {text}")
    assert not wrong, "\n".join(wrong)


def test_settings():
    """Variables of the tests and of CMake have prefixes of their own, or are told with a -D."""
    wrong = []
    for page in PAGES:
        named = set(re.findall(r"(?<!-D)\b(QUOIT_[A-Z][A-Z0-9_]*[A-Z0-9])\b", page.read_text()))
        cmake = set(re.findall(r"\b(QUOIT_\w+)", (ROOT / "CMakeLists.txt").read_text() + (ROOT / "transport" / "CMakeLists.txt").read_text()))
        header = set(re.findall(r"\bQUOIT_\w+", "".join(path.read_text() for path in (ROOT / "include" / "quoit").glob("*.h"))))
        wrong += [f"{name(page)}: {word}" for word in sorted(named - SETTINGS - cmake - header) if not word.startswith("QUOIT_TEST_")]
    assert not wrong, "\n".join(wrong)


def test_the_check_itself(tmp_path):
    page = ROOT / "README.md"
    assert wrong_link(page, "docs/design.md#the-engine") is None and wrong_link(page, "#limits") is None
    assert wrong_link(page, "docs/nothing.md") and wrong_link(page, "docs/design.md#nothing") and wrong_link(page, "../elsewhere")
    assert wrong_path("base/store*.c") is None and wrong_path("docs/results/<name>") is None and wrong_path("base/nothing.c")
