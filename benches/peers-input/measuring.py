"""What every candidate in Python does with its batches, and what it tells."""
import json
import sys
import time


def memory(pid="self"):
    """Bytes: the peak of what the process had resident."""
    with open("/proc/%s/status" % pid) as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def private(pid):
    """Bytes of a worker process that it shares with nobody."""
    with open("/proc/%d/smaps_rollup" % pid) as rollup:
        return sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Private"))


def run(batches, items, seconds, check, workers=lambda: 0):
    """Takes batches for so long, after the first one; each is touched, and its first is told."""
    before, start = memory(), time.perf_counter()
    batches = iter(batches())
    seen = [check(next(batches))]
    first = time.perf_counter() - start
    start, taken = time.perf_counter(), 0
    while True:
        batch = next(batches, None)
        if batch is None:
            break
        if taken < 2:
            seen.append(check(batch))
        taken += items(batch)
        if time.perf_counter() - start > seconds:
            break
    told = {
        "items_per_s": taken / (time.perf_counter() - start),
        "first_ms": first * 1e3,
        "growth_mb": (memory() - before + workers()) / 2**20,
        "seen": seen,
    }
    print(json.dumps(told), flush=True)


def slow_step(batches, step, count):
    """D5: a step keeps a core busy for so long; tells which share of the time batches were waited for."""
    batches = iter(batches())
    next(batches)
    waited, begin = 0.0, time.perf_counter()
    for _ in range(count):
        end, number = time.perf_counter() + step, 0.5
        while time.perf_counter() < end:
            number = (number * 1.618 + 0.577) % 1.0
        start = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - start
    print(json.dumps({"waited_percent": 100 * waited / (time.perf_counter() - begin)}), flush=True)


def arguments():
    what, form, workers, folder, seconds = sys.argv[1:]
    return what, form, int(workers), folder, float(seconds)
