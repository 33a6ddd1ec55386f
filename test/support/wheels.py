#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wheels for several torch, for real: builds one beside each, installs each into fresh environments beside each, and runs them.

    $PYTHON test/support/wheels.py                  torch 2.13.0 and 2.14.1
    $PYTHON test/support/wheels.py 2.13.0 2.14.1    these

$PYTHON is any Python 3.11 or newer with pip. Beside the torch that a wheel was built for, two ranks add a tensor and take a step of
DistributedDataParallel. Beside another, `import torch` says in one line that the package does not fit, and works; `import quoit`
fails with the same line. What was found goes to docs/results/wheels.txt with date and versions.

Everything lies under build/wheels (QUOIT_WHEELS names another folder), some 6 GB with a torch for CUDA, and is used again: removing
it is the caller's. Of the CUDA packages that such a torch asks for only those are installed that its libraries are linked to.
"""

import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import venv

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(os.environ.get("QUOIT_WHEELS", SOURCE / "build" / "wheels")).resolve()
RESULT = SOURCE / "docs" / "results" / "wheels.txt"
LIMIT = 120 * float(os.environ.get("TEST_SLOW", "1"))  # seconds, of a run

RANK = """
import datetime, sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("quoit", init_method="file://" + sys.argv[2], rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
import quoit
for count in (3, 1 << 20):
    tensor = torch.full((count,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(3).all(), tensor
model = torch.nn.Linear(4, 2)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(float(rank))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model(torch.full((1, 4), float(rank))).sum().backward()
optimizer.step()
weight, bias = (parameter.detach() for parameter in model.parameters())
assert weight.eq(-0.25).all() and bias.eq(-0.5).all(), (weight, bias)
assert quoit.describe(as_dict=True)["status"] == "success"
print("torch", torch.__version__, "quoit", quoit.__version__)
dist.destroy_process_group()
"""

OTHER = """
import torch, torch.distributed as dist
assert "quoit" not in dist.Backend.backend_list
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""


class Failed(Exception):
    """A step went wrong; the text is its output."""


def say(text):
    print("==", text, flush=True)


def run(*words, limit=3600, **environment):
    """Standard output and error of a command that succeeds."""
    words = [str(word) for word in words]
    env = {**os.environ, "PYTHONNOUSERSITE": "1", **{key: str(value) for key, value in environment.items()}}
    done = subprocess.run(words, cwd="/", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
    if done.returncode != 0:
        raise Failed(f"$ {' '.join(words)}\n{done.stdout[-4000:]}status {done.returncode}")
    return done.stdout


def python_of(environment):
    return environment / "bin" / "python"


def site_of(environment):
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


# ---------------------------------------------------------------- torch


def missing_libraries(site):
    """Names of what the loader does not find for torch, less the driver's own library."""
    found = subprocess.run(["ldd", site / "torch/lib/libtorch_python.so"], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return {line.split()[0] for line in found.stdout.splitlines() if "not found" in line and not line.split()[0].startswith("libcuda.")}


def requirements_for(site, libraries):
    """Those requirements of torch that bring these libraries."""
    stems = {re.match(r"lib([a-z]+)", library.lower())[1] for library in libraries}
    (metadata,) = site.glob("torch-*.dist-info/METADATA")
    wanted = []
    for line in metadata.read_text().splitlines():
        if not line.startswith("Requires-Dist: ") or "extra ==" in line:
            continue
        requirement = line.removeprefix("Requires-Dist: ").split(";")[0].strip()
        toolkit = re.match(r"cuda-toolkit\[([^]]*)\](.*)", requirement)
        if toolkit:
            extras = [extra for extra in toolkit[1].split(",") if extra in stems]
            if extras:
                wanted.append(f"cuda-toolkit[{','.join(extras)}]{toolkit[2]}")
        elif re.match(r"nvidia-([a-z]+)", requirement):
            if re.match(r"nvidia-([a-z]+)", requirement)[1] in stems:
                wanted.append(requirement)
        elif not re.match(r"(triton|cuda-bindings)\b", requirement):
            wanted.append(requirement)
    return wanted


def make_torch(version):
    """An environment that holds torch, what it needs to be imported, and what a wheel is built with."""
    environment = FOLDER / f"torch-{version}"
    python, site = python_of(environment), site_of(environment)
    if not (environment / "complete").exists():
        say(f"pip install torch=={version}")
        venv.create(environment, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "--no-compile"]
        run(*pip, "--no-deps", f"torch=={version}")
        run(*pip, *requirements_for(site, missing_libraries(site)), "numpy", "scikit-build-core", "ninja", "cmake>=3.25")
        (environment / "complete").touch()
    loaded = run(python, "-c", "import torch; print(torch.__version__)", limit=LIMIT).strip().splitlines()[-1]
    if loaded.split("+")[0] != version:
        raise Failed(f"torch {version} was asked for, and torch {loaded} is loaded")
    return environment


def build(version, environment):
    say(f"pip wheel . beside torch {version}")
    output = FOLDER / f"wheel-{version}"
    for old in output.glob("*.whl"):
        old.unlink()
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    options = ["--no-build-isolation", "--no-deps", "-C", f"build-dir={FOLDER / f'cmake-{version}'}", "-w", output]
    run(python_of(environment), "-m", "pip", "wheel", *options, SOURCE, PATH=path)
    (wheel,) = output.glob("*.whl")
    return wheel


# ---------------------------------------------------------------- running


def install_fresh(name, torch, wheel):
    """A fresh environment that holds the wheel alone, and sees torch."""
    environment = FOLDER / name
    venv.create(environment, clear=True)
    (site_of(environment) / "torch.pth").write_text(f"{site_of(torch)}\n")
    run(python_of(torch), "-m", "pip", "--python", python_of(environment), "install", "--no-deps", wheel)
    return python_of(environment)


def train(python):
    """Two ranks; their words."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "rank.py")
        program.write_text(RANK)
        words = [[str(python), str(program), str(rank), f"{folder}/store"] for rank in range(2)]
        env = {**os.environ, "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen(each, cwd="/", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for each in words]
        try:
            outputs = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode for rank in ranks) or "Warning" in outputs[0]:
        raise Failed("\n".join(outputs))
    return outputs[0].strip().splitlines()[-1]


def refuse(python, built, loaded):
    """`import torch` warns once and works, `import quoit` fails; the text that both say."""
    said = re.compile(rf"quoit \S+ was built for torch {re.escape(built)}\S*, but torch {re.escape(loaded)}\S* is loaded: .*")
    output = run(python, "-c", OTHER, limit=LIMIT)
    texts = said.findall(output)
    if len(texts) != 1 or output.count("the quoit backend is not available: ") != 1 or "Traceback" in output:
        raise Failed(f"torch {loaded} with a wheel for {built} does not say so once:\n{output}")
    code = "try:\n    import quoit\nexcept ImportError as error:\n    print(error)\nelse:\n    raise SystemExit('imported')"
    output = run(python, "-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", limit=LIMIT)
    if output.strip() != texts[0]:
        raise Failed(f"import quoit beside torch {loaded} says other things:\n{output}")
    return texts[0]


def main(versions):
    lines = [f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, Python {platform.python_version()}, torch {' and '.join(versions)}"]
    failed = 0
    torch = {version: make_torch(version) for version in versions}
    wheels = {version: build(version, torch[version]) for version in versions}
    for version in versions:
        lines.append(f"built beside torch {version}: {wheels[version].name}, {wheels[version].stat().st_size / 1e6:.1f} MB")
    for built in versions:
        for loaded in versions:
            say(f"the wheel for torch {built} beside torch {loaded}")
            try:
                python = install_fresh(f"run-{built}-{loaded}", torch[loaded], wheels[built])
                outcome = f"all_reduce and a DDP step among 2 ranks are right ({train(python)})" if built == loaded else refuse(python, built, loaded)
            except (Failed, subprocess.TimeoutExpired) as error:
                failed += 1
                outcome = f"FAILED\n{error}"
            lines.append(f"the wheel for {built} beside {loaded}: {outcome}")
            print(lines[-1], flush=True)
    lines.append(f"{len(versions) ** 2 - failed} passed, {failed} failed")
    RESULT.write_text("\n".join(lines).replace(str(FOLDER), "build/wheels").replace(str(SOURCE), ".") + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:] or ["2.13.0", "2.14.1"]))
    except Failed as error:
        sys.exit(str(error))
