#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Memcheck over programs whose ranks are threads, and over bench_allreduce with its results checked: values that nobody set, and what is lost,
# which sanitizers do not see. One argument: the build folder (default build). A line each, and what memcheck says.
# Ranks that are processes run themselves through /proc/self/exe, which under valgrind is valgrind: those programs are left out.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=$(cd "${1:-build}" && pwd)
logs=$(mktemp -d)
export QUOIT_ISA=avx2 QUOIT_HWLOC=no TEST_SLOW=${TEST_SLOW:-40} # valgrind knows no AVX-512, and hwloc no valgrind
check=(valgrind --tool=memcheck --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --error-exitcode=99 -q)
failed=0

run() {
    local name=$1 status=0
    shift
    timeout 1800 "${check[@]}" --log-file="$logs/$name.%p" "$@" >"$logs/$name.out" 2>&1 || status=$?
    grep -hv 'unhandled amd64-linux syscall\|You may be able to write\|README_MISSING_SYSCALL\|Nevertheless we consider\|valgrind.org/support' "$logs/$name".[0-9]* |
        grep -h '==' | head -40
    echo "memcheck, status $status: $name: ${*//$build\//}"
    [ "$status" = 0 ] || { failed=1; tail -5 "$logs/$name.out"; }
}

# One of the two ranks is checked; the other only answers.
"$build/bench/bench_allreduce" --rank 1 --size 2 --store "file://$logs/store" --sizes 4,64K,1M --time 0.05 --check >/dev/null 2>&1 &
run bench "$build/bench/bench_allreduce" --rank 0 --size 2 --store "file://$logs/store" --sizes 4,64K,1M --time 0.05 --check
wait
run lies "$build/test/comm/test_comm_lies" --gtest_filter='*Slots*:*Input*'
run groups "$build/test/comm/test_comm_groups" --gtest_filter='Groups.AMember*:Groups.JobsCome*:Groups.Split:Arguments.*'
run requests "$build/test/comm/test_comm_requests" --gtest_filter='*ranks_2_0:-*ManyInFlight*'
run notice "$build/test/comm/test_comm_notice"
run wire "$build/test/comm/test_comm_wire" --gtest_filter='WireConfig.*'
run framing "$build/test/transport/test_framing"
run arena "$build/test/shm/test_shm_arena"
rm -rf "$logs"
exit $failed
