#!/usr/bin/env python3
"""Builds `target/cuda-check/`: what `check.py` in it needs on a machine with a GPU.

    make cuda-check

The folder has the command, the CUDA tests and the CUDA benchmarks as release binaries, the
same model in PyTorch, and `check.py`, which runs them all there with nothing but Python and
PyTorch. Beside it comes `target/cuda-check.tar.gz`.

Simulated GPUs go along, and what the tests gave on them here (`simulated.json`): the check
prints where a GPU gives something else.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 60 * 1000 * 1000
# The simulated devices, and the replacement of NCCL.
LIBRARIES = ["libgpipe_simulated_cuda.so", "libnccl.so.2"]
DEVICES = "4"
BUILDS = [
    ("gpipe-rs", "bin", ["build", "--release", "--bin", "gpipe-rs"]),
    ("cuda", "test", ["test", "--release", "--no-run", "--test", "cuda"]),
    ("cuda", "bench", ["bench", "--no-run", "--bench", "cuda"]),
]
NAMES = {"bin": "gpipe-rs", "test": "cuda-tests", "bench": "cuda-benches"}


def built(name, kind, arguments):
    """The path of the executable that cargo makes."""
    command = ["cargo", *arguments, "--locked", "--message-format=json-render-diagnostics"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"error: `{' '.join(command)}` failed")
    for line in run.stdout.splitlines():
        message = json.loads(line)
        target = message.get("target", {})
        if message.get("executable") and target.get("name") == name and kind in target["kind"]:
            return pathlib.Path(message["executable"])
    sys.exit(f"error: cargo made no {kind} `{name}`")


def simulated(target, folder):
    """Packs the simulated GPUs, and what the tests give on them."""
    build = subprocess.run(["sh", ROOT / "src/simulated_cuda/build.sh"],
                           env={**os.environ, "CARGO_TARGET_DIR": str(target)}, check=False)
    if build.returncode != 0:
        sys.exit("error: the simulated GPUs cannot be built")
    (folder / "simulated-cuda").mkdir()
    for library in LIBRARIES:
        shutil.copy2(target / "simulated-cuda" / library, folder / "simulated-cuda" / library)
    print("running the CUDA tests on simulated GPUs", flush=True)
    results = folder / "simulated.json"
    tests = subprocess.run([folder / NAMES["test"], "--json", results],
                           env={**os.environ, "GPIPE_SIMULATE_GPUS": DEVICES}, check=False)
    if tests.returncode != 0:
        sys.exit("error: the CUDA tests failed on simulated GPUs: nothing to compare a GPU with")


def commit():
    run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    return run.stdout.strip() or "unknown"


def main():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
    folder = target / "cuda-check"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, kind, arguments in BUILDS:
        binary = folder / NAMES[kind]
        shutil.copy2(built(name, kind, arguments), binary)
        if shutil.which("strip"):
            subprocess.run(["strip", str(binary)], check=False)
    simulated(target, folder)
    for file in ["check.py", "compare.py", "eager.py"]:
        shutil.copy2(HERE / file, folder / file)
    (folder / "commit.txt").write_text(commit() + "\n")
    packed = folder.with_name("cuda-check.tar.gz")
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder, arcname="cuda-check")
    size = packed.stat().st_size
    print(f"{folder}: {packed.name} beside it has {size / 1e6:.1f} MB")
    print("On a machine with a GPU and PyTorch 2.11: `python3 cuda-check/check.py`")
    if size > LIMIT:
        sys.exit(f"error: {packed} has {size} bytes, more than {LIMIT}")


if __name__ == "__main__":
    main()
