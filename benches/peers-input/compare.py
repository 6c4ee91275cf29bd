"""Measures: every candidate of a workload in a process of its own, one after the other, round by round.

A ratio is taken within a round, and the median of the ratios with its quartiles is told: what
else the machine does meanwhile changes from round to round.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# The forms of each candidate, the fastest first. All have the same number of workers; PyTorch's "main" loads
# in the training thread.
FORMS = {
    "d1": {"gpipe": ["plain"], "tf.data": ["plain"]},
    "d1shuf": {"gpipe": ["plain"], "tf.data": ["plain"]},
    "d2": {"gpipe": ["row", "vec", "tensor", "batch"], "tf.data": ["plain"], "torch": ["plain"]},
    "d3": {"gpipe": ["memory", "file"], "tf.data": ["plain", "slices"], "torch": ["plain", "items", "main"]},
    "d4": {"gpipe": ["plain"], "tf.data": ["plain"], "torch": ["plain", "items", "main"]},
    "d5": {"gpipe": ["plain"], "tf.data": ["plain"], "torch": ["plain"]},
}
TITLES = {
    "d1": "D1: 200,000 Examples of 64 floats in 8 TFRecord shards, checksums, batches of 256",
    "d1shuf": "D1, shuffled within 10,000",
    "d2": "D2: 4,000 Examples of 150 kB, to normalised floats, batches of 32",
    "d3": "D3: an array of a million rows of 32 floats, shuffled, batches of 256",
    "d4": "D4: windows of 513 of 50 million tokens, batches of 32",
    "d5": "D5: batches that take 20 ms behind steps of 30 ms: share of the time waited",
}


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def quartiles(values):
    if len(values) < 2:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def told(value, digits=0):
    return ("{:,.%df}" % digits).format(value)


def sample(command):
    """One process' answer, and what the machine did beside it."""
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=HERE)
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def rows(results, what, workers):
    """The table's rows of a workload: candidate, form, samples."""
    own = [own for own in results if (own["what"], own["workers"]) == (what, workers)]
    for key in dict.fromkeys((r["who"], r["form"]) for r in own):
        yield key, {r["round"]: r for r in own if (r["who"], r["form"]) == key and "error" not in r}


def table(results):
    out = []
    for what in FORMS:
        here = [r for r in results if r["what"] == what]
        if not here:
            continue
        waits = what == "d5"
        field = "waited_percent" if waits else "items_per_s"
        out += ["**%s**" % TITLES[what], ""]
        out += ["| | workers | %s | ours over it | first batch | memory |" % ("waited" if waits else "items/s"),
                "|---|---|---|---|---|---|"]
        for workers in sorted({r["workers"] for r in here}):
            every = dict(rows(results, what, workers))
            ours = [(k, v) for k, v in every.items() if k[0] == "gpipe" and v]
            best = max(ours, key=lambda kv: quartiles([r[field] for r in kv[1].values()])[1], default=None)
            for (who, form), samples in every.items():
                if not samples:
                    out.append("| %s %s | %d | failed | | | |" % (who, form, workers))
                    continue
                low, middle, high = quartiles([r[field] for r in samples.values()])
                ratio = ""
                if best and who != "gpipe" and not waits:
                    ratios = [best[1][n][field] / r[field] for n, r in samples.items() if n in best[1]]
                    ratio = "**%.2f** (%.2f–%.2f)" % tuple(quartiles(ratios)[i] for i in (1, 0, 2)) if ratios else ""
                digits = 3 if waits else 0
                mark = " %" if waits else ""
                cell = "%s%s (%s–%s)" % (told(middle, digits), mark, told(low, digits), told(high, digits))
                rest = [statistics.median(r[f] for r in samples.values()) if f in next(iter(samples.values())) else None
                        for f in ("first_ms", "growth_mb")]
                ends = [("%.0f ms" % rest[0]) if rest[0] is not None else "", ("+%.0f MiB" % rest[1]) if rest[1] is not None else ""]
                out.append("| %s %s | %d | %s | %s | %s | %s |" % (who, form, workers, cell, ratio, *ends))
        out.append("")
    return "\n".join(out)


def machine():
    with open("/proc/cpuinfo") as f:
        model = next((l.split(":")[1].strip() for l in f if l.startswith("model name")), platform.machine())
    return "%d cores (%s), Linux %s, load %.1f at the end" % (
        os.cpu_count(), model, platform.release(), os.getloadavg()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", default=",".join(FORMS), help="workloads, of %s" % ", ".join(FORMS))
    parser.add_argument("--who", default="gpipe,tf.data,torch")
    parser.add_argument("--first-forms", action="store_true", help="of each candidate its first form alone")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long batches are taken")
    parser.add_argument("--before", default="", help="put before each command, such as `chrt -r 5`")
    parser.add_argument("--folder", default=os.path.expanduser("~/.cache/gpipe-rs/peers-input-data"))
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "peers-input"))
    args = parser.parse_args()
    pythons = subprocess.run(["sh", os.path.join(HERE, "setup.sh")], check=True, capture_output=True, text=True)
    tensorflow, torch = pythons.stdout.split()
    say("data in", args.folder)
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    subprocess.run([tensorflow, os.path.join(HERE, "data.py"), args.folder], check=True, env=env)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    commands = {
        "gpipe": [os.path.join(target, "release", "examples", "peers_input")],
        "tf.data": [tensorflow, os.path.join(HERE, "tf_data.py")],
        "torch": [torch, os.path.join(HERE, "torch_loader.py")],
    }
    before = args.before.split()
    if before and not shutil.which(before[0]):
        parser.error("there is no %s" % before[0])
    results, begun = [], time.time()
    for what in args.what.split(","):
        for number in range(args.rounds):
            for workers in map(int, args.workers.split(",")):
                for who in args.who.split(","):
                    forms = FORMS[what].get(who, [])
                    for form in forms[:1] if args.first_forms else forms:
                        own = [*before, *commands[who], what, form, str(workers), args.folder, str(args.seconds)]
                        result = sample(own)
                        result.update(what=what, who=who, form=form, workers=workers, round=number)
                        say(what, number, who, form, workers,
                            result.get("error") or {k: round(v, 2) for k, v in result.items() if isinstance(v, float)})
                        results.append(result)
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "results.json"), "w") as out:
        json.dump({"machine": machine(), "command": sys.argv[1:], "samples": results}, out, indent=1)
    print("%s; %s; %d rounds of %g s, %.0f minutes" % (
        time.strftime("%Y-%m-%d"), machine(), args.rounds, args.seconds, (time.time() - begun) / 60))
    print("medians with quartiles; ratios of the fastest form of ours, within rounds\n")
    print(table(results))


if __name__ == "__main__":
    main()
