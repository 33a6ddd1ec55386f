#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every suite, counts every test, and ends with one line: N passed, N failed, N skipped. Started by test/run.

Two lanes. The one in front runs the tests, a suite after the other. The one behind takes what the front leaves: it builds, with the least priority (after the
first build), and, with a tenth of a share, since with the least a rank may not get its turn for half a minute, trains the examples and runs the emulated machines. So the processors are busy and
yet deadlines are tested on a machine that answers. Sanitized tests, whose limits are wide, come last in both, and only when those with narrow ones are over:
then everybody has a full share. Each suite's line tells its seconds and those of a processor that it took: what is to be made faster stands there.

Suites: the C tests plain, under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer; a build of the core and of
PyTorch's shim with clang; the Python package's build; the pytest folders. C tests are counted by their GoogleTest cases, a program that dies or
hangs as one failure. Every skip is printed with its reason. As root with apt everything can be had, so there a skip that is not in
test/allowed_skips.txt is a failure (unless --only chose some suites); so is a run that ran nothing, and what a suite leaves in TMPDIR.
"""
import argparse
import dataclasses
import fnmatch
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.etree.ElementTree as xml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ALLOWED = os.path.join(ROOT, "test", "allowed_skips.txt")
JOBS = str(min(4, os.cpu_count() or 1))
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"
HOURS = "^(test_chaos_.*|test_comm_stress)$"  # what these take when they are long; `test/full stress` runs them, each alone


@dataclasses.dataclass
class Outcome:
    """Of one suite."""

    passed: int = 0
    failures: list = dataclasses.field(default_factory=list)  # (name, text)
    skips: list = dataclasses.field(default_factory=list)  # (name, reason)
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of a processor that its commands took
    left: list = dataclasses.field(default_factory=list)  # names of what they left in TMPDIR


class Clock:
    """The whole run's time limit: what is left is each command's."""

    def __init__(self, limit):
        self.end = time.monotonic() + limit

    def left(self, most):
        return max(1.0, min(most, self.end - time.monotonic()))


def tail(text, lines=60):
    kept = text.strip().splitlines()[-lines:]
    return "\n".join("    " + line for line in kept)


RUNNING = set()  # leaders of the sessions that commands were given
ALONE = threading.Event()  # what is to be timed is over: everybody has a full share
OWN = threading.local()  # of this thread's suite: .cpu, the seconds of a processor that its commands took; .folder, their TMPDIR


def end_all():
    for pid in list(RUNNING):
        try:
            os.killpg(pid, signal.SIGTERM)  # ninja ends its compilers, pytest its ranks
        except ProcessLookupError:
            pass


def prefix_that_works(*words):
    """`words`, with which a command can be begun, or nothing where a container forbids what they do."""
    works = shutil.which(words[0]) and subprocess.run([*words, "true"], capture_output=True, start_new_session=True).returncode == 0
    return list(words) if works else []


FULL, LOW, LEAST = 0, 10, 19  # niceness: the usual share of a processor, a tenth of it, what nobody else wants


def stat_of(pid):
    """The numbers of /proc/<pid>/stat behind the name: state, parent, ..."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def family(pid):
    """It and all processes below it."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = int(stat_of(name)[1])
        except OSError:
            pass  # it has ended
    found, more = {pid}, {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more}
        found |= more
    return found


def weigh(pid, niceness):
    """All of its family. A session may be a scheduling group of its own (autogroup), beside another of which the niceness of its processes is nothing."""
    for member in family(pid):
        try:
            os.setpriority(os.PRIO_PROCESS, member, niceness)
            with open(f"/proc/{member}/autogroup", "w") as file:
                file.write(str(niceness))
        except OSError:
            pass  # it has ended, there are no such groups, or only root takes niceness back


def has_ended(process, limit, niceness=FULL):
    """Whether it does so within `limit` seconds (None: waits for ever). It stays to be waited for. Its family has that niceness until ALONE is set."""
    deadline = None if limit is None else time.monotonic() + limit
    look = time.monotonic()
    while not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
        if niceness != FULL and (ALONE.is_set() or time.monotonic() >= look):
            niceness = FULL if ALONE.is_set() else niceness
            weigh(process.pid, niceness)
            look = time.monotonic() + 1  # some of those begun meanwhile have sessions of their own
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def cpu_seconds(pid):
    """Of a process that has ended, and of all its descendants that were waited for."""
    return sum(map(int, stat_of(pid)[11:15])) / os.sysconf("SC_CLK_TCK")


def execute(words, limit, env=None, log=None, niceness=FULL):
    """(status, output). The command has a session of its own, which is killed when the limit is over. Status None: it was."""
    env = dict(env or os.environ, TMPDIR=OWN.folder, TEST_TMPDIR=OWN.folder)  # the second one is GoogleTest's
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        RUNNING.add(process.pid)
        try:
            in_time = has_ended(process, limit, niceness)
            if not in_time:
                os.killpg(process.pid, signal.SIGTERM)  # pytest and its children get the chance to clean up
                if not has_ended(process, 15):
                    os.killpg(process.pid, signal.SIGKILL)
                    has_ended(process, None)
            OWN.cpu += cpu_seconds(process.pid)
            status = process.wait()
        finally:
            RUNNING.discard(process.pid)
        output.seek(0)
        text = output.read().decode(errors="replace")
    status = status if in_time else None
    if log:
        with open(log, "w") as file:
            file.write(text)
    return status, text


def how(status):
    return "time limit reached" if status is None else f"status {status}"


def share_compilations():
    """The package is made of the same C files, with the same options, as the C tests: compiled once, they come from ccache's store then."""
    os.environ.setdefault("CC", "cc")  # by the same name, too: the package's builder would call the compiler gcc, to ccache another one
    os.environ.setdefault("CXX", "c++")
    if shutil.which("ccache"):
        os.environ.setdefault("CMAKE_C_COMPILER_LAUNCHER", "ccache")
        os.environ.setdefault("CCACHE_DIR", os.path.join(ROOT, "build", "ccache"))
        os.environ["CCACHE_NOHASHDIR"] = "1"  # the folder that a compiler runs in is of no matter


NO_CCACHE = "-DCMAKE_C_COMPILER_LAUNCHER="  # for builds whose objects nobody will ask for again: keeping them costs an eighth of the time


# ---------------------------------------------------------------- C


def configure_and_build(folder, arguments, clock, outcome, name, niceness=LEAST):
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    for words in (["cmake", "-S", ".", "-B", folder, *generator, *arguments], ["cmake", "--build", folder, "-j", JOBS]):
        status, text = execute(words, clock.left(3600), niceness=niceness)
        if status != 0:
            outcome.failures.append((name, f"{' '.join(words)}: {how(status)}\n{tail(text)}"))
            return False
    return True


def read_junit(path, outcome, prefix=""):
    """GoogleTest's, pytest's: cases, with <failure>, <error> or <skipped> inside."""
    for case in xml.parse(path).getroot().iter("testcase"):
        name = prefix + (case.get("classname", "") + "." + case.get("name", "")).strip(".")
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        if problem is not None:
            outcome.failures.append((name, tail((problem.get("message") or "") + "\n" + (problem.text or ""))))
        elif skipped is not None or case.get("result") == "skipped":
            reason = (skipped.get("message") or skipped.text or "") if skipped is not None else ""
            outcome.skips.append((name, " ".join(reason.split()) or "no reason given"))
        elif case.get("status") != "notrun":
            outcome.passed += 1


def run_ctest(folder, clock, outcome, environment, wrapper=(), sanitized=False):
    """Each entry; its cases come from the XML that GoogleTest writes. What fails is tried once more, and told."""
    results = os.path.join(ROOT, folder, "results")
    shutil.rmtree(results, ignore_errors=True)
    os.makedirs(results)
    junit = os.path.join(results, "ctest.junit")
    limit = 900 if sanitized else 3600 if LONG else 300  # of one entry
    words = [*wrapper, "ctest", "--test-dir", folder, "-j", "5", "--output-on-failure", "--timeout", str(limit), "--repeat", "until-pass:2",
             "--output-junit", junit, *(["-E", HOURS] if LONG and not sanitized else [])]
    status, text = execute(words, clock.left(7200 if LONG else 3600), dict(os.environ, **environment), os.path.join(results, "ctest.log"))
    if not os.path.exists(junit):
        outcome.failures.append(("ctest", f"{how(status)}\n{tail(text)}"))
        return
    failed_once = set(re.findall(r"Test +#\d+: (\S+) \.*\*\*\*", text))
    for case in xml.parse(junit).getroot().iter("testcase"):
        name, ended_well = case.get("name"), case.get("status") == "run"
        if ended_well and name in failed_once:
            print(f"passed on the second try only: {name}; see {results}/ctest.log", flush=True)
        report = os.path.join(results, f"{name}.xml")
        failed_before = len(outcome.failures)
        if os.path.exists(report):
            read_junit(report, outcome, f"{name}:")
        elif ended_well:
            outcome.passed += 1  # a test that is no GoogleTest program
        if not ended_well and len(outcome.failures) == failed_before:
            out = case.find("system-out")
            outcome.failures.append((name, "the program failed, died or hung outside its cases\n" + tail(out.text if out is not None and out.text else text)))


def c_build(clock):
    outcome = Outcome()
    if configure_and_build("build", ["-DQUOIT_TORCH=OFF"], clock, outcome, "build", FULL):  # all tests wait for it
        outcome.passed += 1
    return outcome


def c_tests(clock):
    outcome = Outcome()
    run_ctest("build", clock, outcome, {})
    return outcome


def sanitized_build(folder, sanitizers, *more):
    def build(clock):
        outcome = Outcome()
        flags = ["-DQUOIT_TORCH=OFF", "-DQUOIT_BENCH=OFF", NO_CCACHE, f"-DQUOIT_SANITIZE={sanitizers}", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O1 -g1",
                 "-DCMAKE_CXX_FLAGS=-O1 -g1", *more]
        if configure_and_build(folder, flags, clock, outcome, f"build with -fsanitize={sanitizers}"):
            outcome.passed += 1
        return outcome

    return build


def sanitized_tests(folder, sanitizers, environment):
    def tests(clock):
        outcome = Outcome()
        why = why_no_start(sanitizers)
        if why:
            outcome.failures.append(("start", why))
        else:
            run_ctest(folder, clock, outcome, dict(environment, TEST_SLOW="4", QUOIT_TEST_LONG="0"), IN_PLACE, sanitized=True)  # long runs would take days
        return outcome

    return tests


# The sanitizers of gcc 12 cannot start, or only now and then, where the kernel spreads addresses as wide as newer ones do.
IN_PLACE = prefix_that_works("setarch", platform.machine(), "-R")


def why_no_start(sanitizers):
    """None when a program with these sanitizers starts here, every time, else what it says."""
    source, program = os.path.join(OWN.folder, "empty.c"), os.path.join(OWN.folder, "empty")
    with open(source, "w") as file:
        file.write("int main(void) { return 0; }\n")
    try:
        status, text = execute([os.environ.get("CC", "cc"), f"-fsanitize={sanitizers}", "-o", program, source], 120)
        for _ in range(20 if status == 0 else 0):
            status, text = execute([*IN_PLACE, program], 60)
            if status != 0:
                break
        bits = "?"
        if os.path.exists("/proc/sys/vm/mmap_rnd_bits"):
            with open("/proc/sys/vm/mmap_rnd_bits") as file:
                bits = file.read().strip()
        return None if status == 0 else (f"a program with -fsanitize={sanitizers} does not start ({how(status)}; vm.mmap_rnd_bits is {bits}, of which 28 does; "
                                         f"setarch -R {'is used' if IN_PLACE else 'is refused here'})\n{tail(text)}")
    finally:
        for path in (source, program):
            if os.path.exists(path):
                os.unlink(path)


def clang_build(clock):
    outcome = Outcome()
    name = "core, bench_allreduce and PyTorch's shim build with clang and -Werror"
    compiler = next((c for c in ("clang-14", "clang") if shutil.which(c)), None)
    if compiler is None:
        outcome.skips.append((name, "clang is not installed"))
        return outcome
    flags = ["-DQUOIT_TORCH=ON", f"-DPython_EXECUTABLE={sys.executable}", "-DQUOIT_TESTS=OFF", "-DQUOIT_WERROR=ON", NO_CCACHE, "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_C_COMPILER={compiler}",
             f"-DCMAKE_CXX_COMPILER={compiler.replace('clang', 'clang++', 1)}"]
    if configure_and_build("build-clang", flags, clock, outcome, name):
        outcome.passed += 1
    return outcome


# ---------------------------------------------------------------- Python


def package(clock):
    outcome = Outcome()
    words = [sys.executable, "-m", "pip", "install", "-qq", "--no-build-isolation", "--no-deps", "."]
    status, text = execute(words, clock.left(3600), niceness=LEAST)
    if status == 0:
        status, text = execute([sys.executable, "-P", "-c", "import quoit; print(quoit.__version__)"], clock.left(120))
    if status == 0:
        outcome.passed += 1
    else:
        outcome.failures.append(("pip install . --no-build-isolation, import quoit", f"{how(status)}\n{tail(text)}"))
    return outcome


SECOND_TRIES = 4  # that many failures of a suite are tried once more: a deadline missed on a busy machine is told, but is no failure


def try_again(folder, words, outcome, clock, limit, env):
    """The tests that failed, once more, alone. What passes now counts as passed and is named."""
    again = [word for word in words if not word.startswith("--junitxml")]
    for name, text in list(outcome.failures):
        module, _, test = name.rpartition(f"{os.path.basename(folder)}.")[2].partition(".")
        status, output = execute([*again, f"{folder}/{module}.py::{test}"], clock.left(limit), env)
        if status != 0:
            continue
        outcome.failures.remove((name, text))
        outcome.passed += 1
        print(f"passed on the second try only: {name}\n{text}", flush=True)


def pytest(folder, limit, niceness=FULL):
    limit = limit * 4 if LONG else limit

    def suite(clock):
        outcome = Outcome()
        results = os.path.join(ROOT, "build", "results")
        os.makedirs(results, exist_ok=True)
        junit = os.path.join(results, f"pytest-{os.path.basename(folder)}.xml")
        if os.path.exists(junit):
            os.unlink(junit)
        library = os.path.join(ROOT, "build", "libquoit.so")
        env = dict(os.environ, QUOIT_TEST_BUILD=os.path.join(ROOT, "build"), QUOIT_TEST_LIBRARY=library)
        if niceness != FULL:
            env.setdefault("TEST_SLOW", "4")
        stuck = limit * 2 // 3  # of one test: then it is shown where it stands, before the suite's time is over
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={stuck}",
                 f"--basetemp={OWN.folder}/pytest", f"--junitxml={junit}", folder]
        status, text = execute(words, clock.left(limit), env, junit + ".log", niceness)
        if os.path.exists(junit):
            read_junit(junit, outcome)
        if status == 1 and 0 < len(outcome.failures) <= SECOND_TRIES:
            try_again(folder, words[:-1], outcome, clock, limit, env)
        if status not in (0, 1) or (status == 1 and not outcome.failures and not outcome.passed):
            outcome.failures.append((f"pytest {folder}", f"{how(status)}\n{tail(text)}"))
        shutil.rmtree(os.path.join(OWN.folder, "pytest"), ignore_errors=True)
        return outcome

    return suite


# What ThreadSanitizer is not shown, neither built nor run: there are no races for it to see.
ONE_THREAD = ["test_comm_notice", "test_device", "test_handshake", "test_registry", "test_shm_arena", "test_shm_info", "test_shm_limits", "test_ip_address",
              "test_tcp_connect", "test_ip_interface", "test_tcp_namespace", "test_tcp_rails", "test_tcp_stranger", "test_tcp_transfer"]
PROCESSES = ["test_comm_faults", "test_comm_faults_ucx", "test_comm_faults_verbs", "test_comm_life", "test_comm_mismatch", "test_comm_resources", "test_comm_cuts"]  # ranks are
DONE_ELSEWHERE = ["test_framing",  # one thread does all but for two that pass bytes through a ring, as in test_transport_shm
                  "test_transport_ucx"]  # the threads are those of a library that is not instrumented
RACELESS = ONE_THREAD + PROCESSES + DONE_ELSEWHERE
TSAN = "halt_on_error=1:second_deadlock_stack=1"


@dataclasses.dataclass(frozen=True)
class Suite:
    title: str
    run: object  # of the whole run's Clock; returns an Outcome
    needs: tuple = ()  # suites that must have passed before
    behind: bool = False  # in the lane that takes what the other leaves
    last: bool = False  # begins when all suites in front have ended


# Each lane takes its suites in this order.
SUITES = {
    "build": Suite("the library, bench_allreduce and the C tests build", c_build, behind=True),
    "package": Suite("the Python package builds and imports", package, behind=True),
    "build-asan": Suite("the same build with AddressSanitizer",
                        sanitized_build("build-asan", "address,undefined", f"-DQUOIT_TEST_OBJECTS={ROOT}/build"), ("build",), behind=True),
    "build-tsan": Suite("the same build with ThreadSanitizer",
                        sanitized_build("build-tsan", "thread", f"-DQUOIT_TESTS_WITHOUT={';'.join(RACELESS)}"), behind=True),
    "clang": Suite("the core, bench_allreduce and PyTorch's shim build with clang", clang_build, behind=True),
    "examples": Suite("examples", pytest("test/examples", 1200, LOW), ("build", "package"), behind=True),
    "machine": Suite("RDMA devices and netem, in emulated machines", pytest("test/machine", 1200, LOW), ("build", "package"), behind=True),
    "c": Suite("C tests", c_tests, ("build",)),
    "check": Suite("checks of the source tree", pytest("test/check", 300), ("build",)),
    "bench": Suite("bench_allreduce and the test hosts", pytest("test/bench", 600), ("build", "package")),
    "torch": Suite("PyTorch's backend", pytest("test/torch", 2400), ("build", "package")),
    "asan": Suite("C tests under AddressSanitizer and UndefinedBehaviorSanitizer",
                  sanitized_tests("build-asan", "address,undefined", {"UBSAN_OPTIONS": "print_stacktrace=1"}), ("build-asan",), last=True),
    "tsan": Suite("C tests under ThreadSanitizer",
                  sanitized_tests("build-tsan", "thread", {"TSAN_OPTIONS": TSAN}), ("build-tsan",), behind=True, last=True),
}


# ---------------------------------------------------------------- the end


def allowed_skips():
    """[pattern] of `suite::name`."""
    patterns = []
    with open(ALLOWED) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                patterns.append(line.split("|")[0].strip())
    return patterns


def judge_skips(results, strict):
    """Print each skip once with its reason; the ones that count as failures are returned."""
    patterns, bad, seen = allowed_skips(), [], {}
    for key, outcome in results.items():
        for name, reason in outcome.skips:
            is_allowed = any(fnmatch.fnmatchcase(f"{key}::{name}", pattern) for pattern in patterns)
            seen.setdefault((reason, is_allowed), []).append(f"{key}::{name}")
            if strict and not is_allowed:
                bad.append((f"{key}::{name}", reason))
    for (reason, is_allowed), names in seen.items():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        print(f"skipped{'' if is_allowed or not strict else ' (not allowed here)'}: {reason}: {shown}")
    return bad


def run_suite(key, clock, folder):
    suite = SUITES[key]
    began, OWN.cpu, OWN.folder = time.monotonic(), 0.0, os.path.join(folder, key)
    os.mkdir(OWN.folder)
    os.chmod(OWN.folder, 0o1777)  # some tests' ranks are other users
    try:
        outcome = suite.run(clock)
    except Exception:
        outcome = Outcome(failures=[(key, tail(traceback.format_exc()))])
    outcome.seconds, outcome.cpu = time.monotonic() - began, OWN.cpu
    outcome.left = sorted(os.listdir(OWN.folder))
    if not (outcome.passed or outcome.failures or outcome.skips):
        outcome.failures.append((key, "no test ran"))
    lines = [f"FAILED {key}::{name}\n{text}" for name, text in outcome.failures]
    lines.append(f"== {suite.title}: {outcome.passed} passed, {len(outcome.failures)} failed, {len(outcome.skips)} skipped "
                 f"in {outcome.seconds:.0f} s, {outcome.cpu:.0f} s of CPU")
    print("\n".join(lines), flush=True)
    return outcome


def run_suites(chosen, limit, folder):
    """Outcomes by suite, of which each has a folder of its own in `folder` as TMPDIR. One whose builds failed counts as a failure and does not run."""
    clock, results = Clock(limit), {}
    done = threading.Condition()
    timed = [key for key in chosen if not (SUITES[key].behind or SUITES[key].last)]

    def lane(keys):
        for key in keys:
            with done:
                done.wait_for(lambda key=key: all(other in results for other in (*SUITES[key].needs, *(timed if SUITES[key].last else ()))))
                broken = [need for need in SUITES[key].needs if results[need].failures]
            outcome = Outcome(failures=[(key, f"did not run: {', '.join(broken)} failed")]) if broken else run_suite(key, clock, folder)
            with done:
                results[key] = outcome
                if all(other in results for other in timed):
                    ALONE.set()
                done.notify_all()

    lanes = [threading.Thread(target=lane, args=([key for key in chosen if SUITES[key].behind == behind],), daemon=True)
             for behind in (True, False)]
    for thread in lanes:
        thread.start()
    try:
        for thread in lanes:
            while thread.is_alive():
                thread.join(0.2)  # signals are heard between
    finally:
        end_all()
    return results


def with_needs(keys):
    """In the order of SUITES."""
    wanted = set(keys)
    for key in reversed(SUITES):  # a suite stands after those it needs
        if key in wanted:
            wanted.update(SUITES[key].needs)
    return [key for key in SUITES if key in wanted]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="suites, separated by commas; the builds they need come along")
    parser.add_argument("--list", action="store_true", help="name the suites")
    parser.add_argument("--limit", type=float, default=4800, help="seconds for everything (default 4800)")
    options = parser.parse_args()
    if options.list:
        for key, suite in SUITES.items():
            print(f"{key:10} {suite.title}")
        return 0
    chosen = options.only.split(",") if options.only else list(SUITES)
    unknown = [key for key in chosen if key not in SUITES]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: no such suite; there are {', '.join(SUITES)}")
    share_compilations()
    with tempfile.TemporaryDirectory(prefix="quoit-run-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        results = run_suites(with_needs(chosen), options.limit, folder)
    strict = os.geteuid() == 0 and shutil.which("apt-get") is not None and not options.only
    print("== summary")
    bad_skips = judge_skips(results, strict)
    for key, outcome in results.items():
        for name, _ in outcome.failures:
            print(f"failed: {key}::{name}")
    left = [(key, outcome.left) for key, outcome in results.items() if outcome.left]
    for key, names in left:
        print(f"failed: {key}::TMPDIR: left behind: {', '.join(names[:10])}{' ...' if len(names) > 10 else ''} ({len(names)})")
    passed = sum(outcome.passed for outcome in results.values())
    failed = sum(len(outcome.failures) for outcome in results.values()) + len(bad_skips) + len(left)
    skipped = sum(len(outcome.skips) for outcome in results.values()) - len(bad_skips)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have come ignored, and the tests send it
    sys.exit(main())
