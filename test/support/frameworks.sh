#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The digits under frameworks that people train with, for real, on two ranks: each in an environment of its own under
# build/frameworks, which holds the framework and sees all of $PYTHON's packages (torch and quoit among them). What is printed goes
# to docs/results/frameworks_*.txt, below the date and the versions.
#   PYTHON=.venv/bin/python test/support/frameworks.sh                          all
#   PYTHON=.venv/bin/python test/support/frameworks.sh ray lightning  some of them
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${PYTHON:?names the interpreter of an environment that quoit is installed in}"
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore::FutureWarning
export RAY_USAGE_STATS_ENABLED=0 RAY_COLOR_PREFIX=0 NO_COLOR=1 RAY_raylet_start_wait_time_s=300
readonly limit=900 # seconds a framework
status=0

site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

versions() { # $1: interpreter, then packages
    "$1" - "${@:2}" <<'END'
import importlib.metadata, platform, sys
print(", ".join([f"Python {platform.python_version()}"] + [f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:]]))
END
}

# $1: name of the environment and package, $2: what pip is to install; then the command, found in that environment first.
train() {
    local name=$1 package=$2 folder=$PWD/build/frameworks/$1 log=docs/results/frameworks_$1.txt
    shift 2
    printf '== %s: %s\n' "$name" "$*"
    [ -x "$folder/bin/python" ] || "$PYTHON" -m venv "$folder" || return 1
    printf 'import site; site.addsitedir("%s")\n' "$(site_packages "$PYTHON")" > "$(site_packages "$folder/bin/python")/beneath.pth"
    "$folder/bin/python" -m pip install -qq "$package" || return 1
    {
        printf '%s, %s\n$ %s\n' "$(date -u +%Y-%m-%d)" "$(versions "$folder/bin/python" torch quoit "$name")" "$*"
        PATH="$folder/bin:$PATH" timeout "$limit" "$@" 2>&1 | sed -u "s#$folder#<environment>#g; s#$PWD#.#g; /^.* Tip: /d"
        printf 'status %s\n' "${PIPESTATUS[0]}"
    } | tee "$log"
    grep -q '^status 0$' "$log" && grep -q '2 ranks, quoit: weights are the same bits on every rank' "$log"
}

mkdir -p docs/results
[ $# -gt 0 ] || set -- accelerate lightning ray
for framework in "$@"; do
    case $framework in
        accelerate) train accelerate accelerate accelerate launch --multi_gpu --num_processes 2 examples/digits_accelerate.py ;;
        lightning) train lightning lightning python examples/digits_lightning.py ;;
        ray) train ray 'ray[train]' python examples/digits_ray.py ;;
        *) printf 'no framework %s\n' "$framework" >&2; exit 2 ;;
    esac || { printf '%s failed\n' "$framework" >&2; status=1; }
done
exit $status
