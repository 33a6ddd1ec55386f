# SPDX-License-Identifier: Apache-2.0
"""The pages lead somewhere: links and their anchors, paths, settings, functions, tests and fuzz targets that a page names are there."""

import re

from files import ROOT, all_files, code_files, is_corpus, name

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


# Of the system, of CUDA, UCX and perf; and names with a part left out.
NAMES_OF_OTHERS = re.compile(r"process_vm_readv|ucp_(request_cancel|mem_map|put)|sys_enter_\w+|(CU|UCS|UCX)_\w+|_[A-Z_]+|\w+_")


def unknown_names(text, known):
    """Words with an underscore, in backticks, that are no names of this tree."""
    words = {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[A-Za-z_]\w*", code) if "_" in word}
    return sorted(word for word in words - known if not word.startswith("QUOIT_") and not NAMES_OF_OTHERS.fullmatch(word))


def test_names():
    """Functions, fields, programs of tests: a page that names one is changed when that is renamed."""
    known = {path.stem for path in all_files()}
    for path in code_files():
        known.update(re.findall(r"\w+", path.read_text(errors="replace")))
    pages = [page for page in PAGES if not is_corpus(page)]
    wrong = [f"{name(page)}: {word}" for page in pages for word in unknown_names(page.read_text(), known)]
    assert not wrong, "\n".join(wrong)


def test_fuzz_targets():
    """docs/design.md tells of each number from outside what tries its parser: `fuzz ring, frame`."""
    targets = set(re.findall(r"^TARGET\((\w+)", (ROOT / "test" / "fuzz" / "targets.def").read_text(), re.M))
    named = {word for cell in re.findall(r"`fuzz ([\w*, ]+)`", (ROOT / "docs" / "design.md").read_text()) for word in cell.split(", ")}
    assert len(named) > 15, named
    assert [word for word in sorted(named) if not any(re.fullmatch(word.replace("*", r"\w+"), target) for target in targets)] == []
    assert [target for target in sorted(targets) if not any(re.fullmatch(word.replace("*", r"\w+"), target) for word in named)] == [], "design.md tells of no number for it"


def test_the_check_itself(tmp_path):
    page = ROOT / "README.md"
    assert wrong_link(page, "docs/design.md#the-engine") is None and wrong_link(page, "#limits") is None
    assert wrong_link(page, "docs/nothing.md") and wrong_link(page, "docs/design.md#nothing") and wrong_link(page, "../elsewhere")
    assert wrong_path("base/store*.c") is None and wrong_path("docs/results/<name>") is None and wrong_path("base/nothing.c")
    assert unknown_names("`plan_share()`, `plan_nothing`, plan_none, `test_chaos_*`", {"plan_share"}) == ["plan_nothing"]
