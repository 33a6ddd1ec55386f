# SPDX-License-Identifier: Apache-2.0
"""The command ``bench_allreduce``: the program that lies in the package. It does not load torch, so this stands beside the package, too."""

import importlib.util
import os
import sys


def main() -> None:
    """Become the program. Its ``--vs`` uses this interpreter, unless the variable PYTHON names another."""
    package = importlib.util.find_spec("quoit")
    folder = package.submodule_search_locations[0] if package and package.submodule_search_locations else ""
    program = os.path.join(folder, "bin", "bench_allreduce")
    os.environ.setdefault("PYTHON", sys.executable)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        raise SystemExit(f"bench_allreduce: {program}: {error.strerror}; was the package built with QUOIT_BENCH=OFF?") from None
