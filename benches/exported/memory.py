"""Trains an exported program over processes of which none could hold its weights, and tells what each held.

    python memory.py GPIPE_RS FILE.pt2 [--processes 4] [--limit-mb 4500] [--steps 3] [--micro 2]

Each process of `gpipe-rs launch` runs under RLIMIT_DATA: its private, writable memory (the heap, all
anonymous mappings, stacks) cannot grow beyond the limit, be it touched or not. Pages of the file that the kernel caches
are nobody's. Told are the peaks of resident memory (VmHWM), and of it what is anonymous (RssAnon),
of files (RssFile) and shared (RssShmem), sampled, and what each process read (`rchar`).
"""
import argparse
import json
import os
import resource
import subprocess
import tempfile
import time

FIELDS = ("VmHWM", "RssAnon", "RssFile", "RssShmem", "VmData")


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:        # It has ended.
        return ""


def children(pid):
    own = read(f"/proc/{pid}/task/{pid}/children").split()
    return [int(x) for x in own]


def look(pid, seen):
    """Adds what a process holds to the most that was seen of its rank."""
    words = dict(x.split("=", 1) for x in read(f"/proc/{pid}/environ").split("\0") if "=" in x)
    if "RANK" not in words:
        return
    own = seen.setdefault(int(words["RANK"]), {})
    lines = (read(f"/proc/{pid}/status") + read(f"/proc/{pid}/io")).splitlines()
    for name, value in (x.split(":", 1) for x in lines if ":" in x):
        if name in FIELDS or name == "rchar":
            scale = 1 if name == "rchar" else 1024
            own[name] = max(own.get(name, 0), int(value.split()[0]) * scale)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("command")
    a.add_argument("file")
    for name, number in (("processes", 4), ("limit-mb", 4500), ("steps", 3), ("micro", 2)):
        a.add_argument(f"--{name}", type=int, default=number)
    a.add_argument("--json", action="store_true")
    a = a.parse_args()
    size, limit, seen = os.path.getsize(a.file), a.limit_mb * 10**6, {}

    def limited():
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    with tempfile.TemporaryDirectory() as folder:
        train = ["train", "--model", a.file, "--loss", "cross-entropy", "--optimizer", "sgd", "--lr", "0.001",
                 "--batch", str(a.micro), "--micro", str(a.micro), "--steps", str(a.steps), "--held-out", "0",
                 "--checkpoint-every", "0", "--threads-per-stage", "1", "--out", os.path.join(folder, "run"), "--json"]
        if a.processes > 1:
            train = ["launch", "--processes", str(a.processes), "--", *train, "--devices", "cpu"]
        else:
            train += ["--devices", "cpu,cpu,cpu,cpu"]
        env = dict(os.environ, **({} if a.processes > 1 else {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871"}))
        run = subprocess.Popen([a.command, *train], env=env, preexec_fn=limited, stdout=subprocess.PIPE, text=True)
        while run.poll() is None:
            for pid in [run.pid, *children(run.pid)]:
                look(pid, seen)
            time.sleep(0.02)
        told = run.stdout.read()
    print(f"the file has {size / 1e6:.0f} MB; no process may have more than {limit / 1e6:.0f} MB of data; exit code {run.returncode}")
    print("rank " + " ".join(f"{name + ' MB':>12}" for name in (*FIELDS, "rchar")))
    for rank, own in sorted(seen.items()):
        print(f"{rank:4} " + " ".join(f"{own.get(name, 0) / 1e6:12.0f}" for name in (*FIELDS, "rchar")))
    print(told)
    raise SystemExit(run.returncode)


main()
