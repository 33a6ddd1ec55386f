#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one test of CTest in shards, side by side, and adds up what they count: shards.py BUILD NAME SHARDS [GTEST_FILTER].

For tests whose cases wait more than they compute, and are many: each process tries the cases that QUOIT_TEST_SHARD=I/N gives it. Lines of a test that start
alike ("2 ranks: 5 cuts, 3 were survived") come out once, with the sums of their numbers. Shows what a failing shard printed, and exits with 1 then.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys

COUNTED = re.compile(r"^(\d+ ranks: )(\d+ .*)$", re.MULTILINE)


def test_of(build, name):
    """Command and environment of the test that CTest knows by this name."""
    listed = json.loads(subprocess.run(["ctest", "--show-only=json-v1", "-R", f"^{name}$"], cwd=build, check=True, capture_output=True).stdout)
    if len(listed["tests"]) != 1:
        sys.exit(f"shards.py: CTest knows {len(listed['tests'])} tests named {name} in {build}, not one")
    test = listed["tests"][0]
    properties = {each["name"]: each["value"] for each in test["properties"]}
    return test["command"], dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))


def add_up(outputs):
    """The counted lines of all shards, their numbers summed: {"2 ranks: ": "10 cuts, 6 were survived"}."""
    sums = {}
    for output in outputs:
        for start, rest in COUNTED.findall(output):
            numbers = [int(each) for each in re.findall(r"\d+", rest)]
            shape = (start, re.sub(r"\d+", "{}", rest))
            sums[shape] = [a + b for a, b in zip(sums.get(shape, [0] * len(numbers)), numbers)]
    return [start + shape.format(*numbers) for (start, shape), numbers in sums.items()]


def main():
    if len(sys.argv) not in (4, 5) or not sys.argv[3].isdigit() or int(sys.argv[3]) < 1:
        sys.exit(__doc__.splitlines()[0])
    build, name, shards = sys.argv[1], sys.argv[2], int(sys.argv[3])
    command, environment = test_of(build, name)
    if len(sys.argv) == 5:
        command = [each for each in command if not each.startswith("--gtest_filter=")] + [f"--gtest_filter={sys.argv[4]}"]

    def run(index):
        return subprocess.run(command, cwd=build, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env=os.environ | environment | {"QUOIT_TEST_SHARD": f"{index}/{shards}"})

    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        ended = list(pool.map(run, range(shards)))
    failed = [index for index, each in enumerate(ended) if each.returncode != 0]
    for index in failed:
        print(f"shard {index} of {shards} ended with {ended[index].returncode}:\n{ended[index].stdout}")
    print("\n".join(add_up(each.stdout for each in ended)))
    print(f"[  {'FAILED' if failed else 'PASSED'}  ] {name}, {len(ended) - len(failed)} of {shards} shards")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
