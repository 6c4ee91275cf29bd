"""Measures: every candidate of a workload in fresh processes, then sample by sample in turn (A B C A B C ...).

A sample counts when all other processes together used less than 5 % of a core (+ 30 ms) while it was
taken; rounds go on until every candidate has enough of them, or the waiting time is used up.
"""
import argparse
import fcntl
import json
import os
import platform
import subprocess
import sys
import time

import report
from candidates import LIGHT, MS, candidates, chosen
from group import HERE, Group, cpu_busy

MEMORY_MB = {"W1": 1700, "W2": 1400, "W3": 800, "W4": 1700}     # generous, a process
WAITING = {"left": 0.0}


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def available_mb():
    with open("/proc/meminfo") as f:
        return next(int(x.split()[1]) // 1024 for x in f if x.startswith("MemAvailable"))


def wait_for_quiet():
    """Sleeps while others use the machine, as long as the waiting time lasts."""
    while WAITING["left"] > 0:
        start = cpu_busy()
        time.sleep(0.5)
        if (cpu_busy() - start) / 0.5 <= 0.06:
            return
        time.sleep(1.5)
        WAITING["left"] -= 2


def measure(configs, rounds, ours):
    """The rows of these candidates, whose processes live at the same time."""
    start, groups = time.time(), []
    for i in range(0, len(configs), 6):
        new = [Group(c, ours) for c in configs[i:i + 6]]
        for g in new:
            g.ready()
        groups += new
    for g in groups:
        for m in g.cfg["ms"]:
            g.sample(m)
    begun, n = time.time(), 0
    for n in range(3 * rounds):
        todo = [(g, m) for m in MS for g in groups if m in g.cfg["ms"] and not g.err]
        # Continues all samples of a number of micro-batches while one of them is missing: pairs need both.
        lacking = {m for g, m in todo if g.undisturbed(m) < rounds}
        todo = [(g, m) for g, m in todo if m in lacking]
        if not todo or (n >= rounds and WAITING["left"] <= 0):
            break
        for g, m in todo:
            if not g.sample(m, n) and not g.err:
                wait_for_quiet()
    rows = [row for g in groups for row in g.close()]
    say(configs[0]["w"], "m", sorted({m for c in configs for m in c["ms"]}), f"{len(groups)} candidates,",
        f"{begun - start:.0f} s to start, {time.time() - begun:.0f} s of rounds, {WAITING['left']:.0f} s of waiting left")
    return rows


def parts(w, configs, ms):
    """Those that are measured in turn: as many as memory holds, all m together where they are small."""
    for some in [ms] if w in LIGHT else [[m] for m in ms]:
        left = [dict(c, ms=[m for m in c["ms"] if m in some]) for c in configs]
        left = [c for c in left if c["ms"]]
        room, part = int(0.8 * available_mb() / MEMORY_MB[w]), []
        for c in left:
            if part and sum(x["ranks"] for x in part) + c["ranks"] > room:
                say(f"{w}: not enough memory for all at once: these ratios are not pair by pair")
                yield part
                part = []
            part.append(c)
        if part:
            yield part


def machine():
    with open("/proc/cpuinfo") as f:
        model = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores ({model}), {platform.system()} {platform.release()}"


def this_run():
    """What made the rows of this run."""
    given = " ".join(f"'{x}'" if " " in x else x for x in sys.argv[1:] if x not in ("--add", "--keep"))
    revision = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return dict(command="make peers" + (f' ARGS="{given}"' if given else ""), date=time.strftime("%Y-%m-%d"),
                revision=revision.stdout.strip())


def arguments():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--w", default="W3,W2,W1,W4", help="workloads")
    a.add_argument("--m", default="1,2,4,8,16", help="numbers of micro-batches")
    a.add_argument("--only", default="", help="comma list of cand, cand:sched, cand:chk or cand@p")
    a.add_argument("--rounds", type=int, default=9, help="undisturbed samples of each candidate")
    a.add_argument("--max-wait", type=float, default=900, help="seconds to wait in all for other load to stop")
    a.add_argument("--out", default=os.path.join(HERE, "../../target/peers"), help="folder of results.json")
    a.add_argument("--add", action="store_true", help="keep what is there of other rows")
    a.add_argument("--ours", default=os.path.join(HERE, "../../target/release/examples/peers_worker"))
    a.add_argument("--keep", action="store_true", help="write the claims' folders in benches/peers")
    return a.parse_args()


def main():
    args = arguments()
    WAITING["left"] = args.max_wait
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "results.json")
    # Two runs at once would disturb each other. The lock is in the user's own folder: in a shared folder
    # others could place a link under a predictable name.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.path.join(cache, "gpipe-rs")
    os.makedirs(cache, exist_ok=True)
    lock = os.open(os.path.join(cache, "compare.lock"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    rows = json.load(open(path))["rows"] if args.add and os.path.exists(path) else []
    ms = [int(m) for m in args.m.split(",")]
    run = this_run()
    for w in args.w.split(","):
        for part in parts(w, chosen(candidates(w, os.cpu_count()), args.only), ms):
            new = measure(part, args.rounds, os.path.abspath(args.ours))
            rows = report.merged(rows, [dict(row, run=run) for row in new])
            result = dict(machine=machine(), rows=rows)
            with open(path + ".new", "w") as f:
                json.dump(result, f)
            os.replace(path + ".new", path)
    report.main(path, HERE if args.keep else None)


if __name__ == "__main__":
    main()
