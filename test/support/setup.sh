# SPDX-License-Identifier: Apache-2.0
# What ./run, test/run and test/full need before they can start, installed where it is missing. To be sourced, from the repository's
# root. Debian packages come by apt (as root); Python packages by pip into a virtual environment of this folder's own, .venv
# (VENV names another). Nothing is downloaded that is already there.

readonly torch_version=2.13.0
venv=${VENV:-.venv}

say() { printf '== %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

have_header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E -x "$2" - >/dev/null 2>&1; }

# The interpreter to make the environment with: 3.11 or newer, 3.11 preferred (for it there is a torch ${torch_version} wheel).
find_python() {
    local name
    for name in "${PYTHON:-}" python3.11 python3; do
        if [ -n "$name" ] && command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$name"
            return
        fi
    done
}

python_has() { "$1" -c "$2" >/dev/null 2>&1; }
python_headers='import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'

# Names of Debian packages that are wanted and not there. $1: "tests" adds what only the tests need, "fuzz" what test/fuzz/run needs, "valgrind" that.
missing_packages() {
    local python
    python=$(find_python)
    command -v gcc >/dev/null || echo gcc
    command -v g++ >/dev/null || echo g++
    command -v cc >/dev/null || echo gcc libc6-dev
    command -v ip >/dev/null || echo iproute2
    [ -n "$python" ] || echo python3.11 python3.11-venv python3.11-dev
    if [ -n "$python" ] && [ ! -x "$venv/bin/python" ]; then
        python_has "$python" 'import venv, ensurepip' || echo "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    fi
    if [ -n "$python" ]; then
        python_has "$python" "$python_headers" || echo "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev"
    fi
    have_header hwloc.h c || echo libhwloc-dev
    have_header infiniband/verbs.h c || echo libibverbs-dev
    have_header openssl/core.h c || echo libssl-dev
    if [ "${1:-}" = tests ]; then
        have_header gtest/gtest.h c++ || echo libgtest-dev
        have_header ucp/api/ucp.h c || echo libucx-dev
        command -v ucx_perftest >/dev/null || echo ucx-utils
        have_header valgrind/callgrind.h c && command -v valgrind >/dev/null || echo valgrind
        command -v tc >/dev/null || echo iproute2
        command -v iperf3 >/dev/null || echo iperf3
        [ "$(uname -m)" != x86_64 ] || command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
        command -v unshare >/dev/null || echo util-linux
        command -v clang-14 >/dev/null || command -v clang >/dev/null || echo clang-14
        command -v nm >/dev/null || echo binutils
        command -v pkg-config >/dev/null || echo pkgconf
        command -v ccache >/dev/null || echo ccache
    fi
    if [ "${1:-}" = fuzz ]; then
        command -v clang-14 >/dev/null || echo clang-14
        [ -n "$(find /usr/lib/llvm-14/lib/clang -name 'libclang_rt.fuzzer-*.a' 2>/dev/null)" ] || echo libclang-rt-14-dev
        command -v llvm-cov-14 >/dev/null || echo llvm-14
    fi
    if [ "${1:-}" = valgrind ]; then command -v valgrind >/dev/null || echo valgrind; fi
}

# A mirror that does not answer is asked again. A machine that was just started may be installing something itself: that is waited for.
readonly apt_options=(-o Acquire::Retries=3 -o DPkg::Lock::Timeout=600)

# Run a command up to three times until it ends well.
again() {
    local try
    for try in 1 2 3; do
        "$@" && return 0
        [ "$try" = 3 ] || sleep $((try * 10))
    done
    return 1
}

install_packages() {
    local wanted
    wanted=$(missing_packages "${1:-}" | tr ' ' '\n' | sort -u | tr '\n' ' ')
    [ -n "${wanted// /}" ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "missing: ${wanted}- install them (Debian and Ubuntu: apt-get install ${wanted% }) or run as root once"
    fi
    say "apt-get install $wanted"
    export DEBIAN_FRONTEND=noninteractive
    again apt-get "${apt_options[@]}" update -qq || fail "apt-get update failed"
    # shellcheck disable=SC2086
    if ! again apt-get "${apt_options[@]}" install -y -qq --no-install-recommends $wanted >/tmp/quoit-apt.$$ 2>&1; then
        tail -20 /tmp/quoit-apt.$$ >&2
        fail "apt-get install $wanted failed"
    fi
    rm -f /tmp/quoit-apt.$$
}

# $1: "tests" adds what only the tests need.
make_environment() {
    local python
    # The package is built with the options of the C tests then, and shares their compilers' output.
    [ "${1:-}" != tests ] || export CMAKE_ARGS="${CMAKE_ARGS:-} -DQUOIT_WERROR=ON"
    if [ ! -x "$venv/bin/python" ]; then
        python=$(find_python)
        [ -n "$python" ] || fail "no Python 3.11 or newer; PYTHON names one"
        say "making $venv with $python"
        "$python" -m venv "$venv" || fail "cannot make $venv"
    fi
    "$venv/bin/python" - "$torch_version" "${1:-}" <<'CHECK' && return 0
import importlib.metadata as m, sys
def has(name, version=None):
    try:
        found = m.version(name).split("+")[0]
    except m.PackageNotFoundError:
        sys.exit(1)
    if version and found != version:
        sys.exit(1)
has("torch", sys.argv[1])
for name in "numpy scikit-learn tqdm scikit-build-core ninja cmake".split() + (["pytest", "mypy"] if sys.argv[2] == "tests" else []):
    has(name)
CHECK
    say "pip install torch==$torch_version and the tools to build with (the first time this downloads some hundred megabytes)"
    again "$venv/bin/python" -m pip install -qq --no-compile "torch==$torch_version" numpy scikit-learn tqdm scikit-build-core ninja 'cmake>=3.25' pytest mypy ||
        fail "pip install failed"
}

# Build the library and its Python package for the torch in the environment, and install it there. The compilers' output is kept in
# build/ and used again the next time.
install_quoit() {
    say "pip install . --no-build-isolation"
    PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m pip install -qq --no-build-isolation --no-deps . || fail "building quoit failed"
}
