# SPDX-License-Identifier: Apache-2.0
"""The Python package: types that mypy --strict agrees with, and a docstring on everything that users see."""

import ast
import os
import subprocess
import sys

import pytest
from files import ROOT, name

PACKAGE = ROOT / "plugin" / "torch" / "quoit"
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"
SOURCES = sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("*.pyi"), PACKAGE.parent / "quoit_autoload" / "__init__.py"])


# Reading torch takes mypy a minute of a core: in the short run what comes from there has no type.
WITHOUT_TORCH = ["--follow-imports=skip", "--allow-subclassing-any", "--no-warn-return-any"]


@pytest.mark.parametrize("with_torch", [False, True] if LONG else [False])
def test_types(tmp_path, with_torch):
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), "-p", "quoit"]
    if not with_torch:
        words += WITHOUT_TORCH
    done = subprocess.run(words, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=600 if with_torch else 250)
    assert done.returncode == 0, done.stdout + done.stderr


def undocumented(tree, prefix=""):
    """Names of public modules, classes and functions below `tree` that have no docstring; an overload's is its implementation's."""
    found = [] if ast.get_docstring(tree) else [prefix or "the module"]
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        if any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in getattr(node, "decorator_list", [])):
            continue
        label = f"{prefix}.{node.name}".strip(".")
        if isinstance(node, ast.ClassDef):
            found += undocumented(node, label)
        elif not ast.get_docstring(node):
            found.append(label)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_docstrings(path):
    assert undocumented(ast.parse(path.read_text())) == []


def test_docstring_check_itself():
    text = '"""."""\nclass A:\n    """."""\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\n@overload\ndef h(): ...\n'
    assert undocumented(ast.parse(text)) == ["A.f", "h"]


def test_stub_names_what_the_package_uses():
    """Each attribute of _C that the package names is in _C.pyi."""
    stub = ast.parse((PACKAGE / "_C.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    used = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "_C":
                used.add(node.attr)
            if isinstance(node, ast.ImportFrom) and node.module == "quoit._C":
                used |= {alias.name for alias in node.names}
    assert used and used - declared == set()
