"""The table of everything measured, and what it says about the claims.   report.py results.json [claims' folder]"""
import itertools
import json
import os
import statistics
import sys

from candidates import EXPORTED, MS, ONEDNN, OURS, key, label

TOLERANCE = 1e-5        # how far first losses may be apart, unless PyTorch's own are further
FEW = 3                 # with fewer undisturbed samples than this, the least disturbed half is taken

# The claims: folder, title, and the lowest ratio (theirs / ours) per workload and m.
CLAIMS = {
    "one-process": ("One process with a thread a core",
                    {(w, m): None for w in ("W1", "W2", "W3", "W4") for m in MS}),
    "two-cores": ("The best that this library offers on two cores, a pipeline or not, against one process with a thread a core",
                  {(w, m): 0.97 for w in ("W1", "W2", "W4") for m in (1, 2)}),
    "pytorch": ("Against the best schedule of torch.distributed.pipelining, two stages",
                {("W1", 16): 1.05, ("W2", 8): 1.15, ("W2", 16): 1.15, ("W3", 16): 5.0, ("W4", 4): 1.05}),
    "torchgpipe": ("Against torchgpipe, two stages, its fastest way as it is shipped",
                   {(w, m): 1.6 for w in ("W1", "W2") for m in (8, 16)}),
    "deepspeed": ("Against DeepSpeed's pipeline, two stages",
                  {(w, m): None for w in ("W1", "W2", "W3", "W4") for m in (8, 16)}),
    "processes": ("Two processes against those of torch.distributed.pipelining, each with its fastest schedule",
                  {("W1", 16): 1.1, ("W2", 8): 1.3, ("W3", 16): 3.0}),
    "processes-deepspeed": ("Two processes against those of DeepSpeed's pipeline",
                            {(w, m): None for w, m in (("W1", 16), ("W2", 8), ("W3", 16))}),
    "own-processes": ("Two processes against two stages in one process, both under 1F1B",
                      {("W1", 16): 0.95, ("W2", 8): None, ("W3", 16): None}),
    "replicas": ("Two replicas in two processes against those of DistributedDataParallel",
                 {("W1", 16): 1.0, ("W2", 8): 1.0, ("W3", 2): 1.0, ("W3", 8): 1.0}),
    "exported": ("The model as .pt2 against the same model written as layers, both under 1F1B",
                 {("W1", m): 1 / 1.03 for m in (4, 8, 16)}),
    "exported-eager": ("The model as .pt2 over two stages against one process of PyTorch with a thread a core",
                       {("W1", m): 1.0 for m in (4, 8, 16)}),
    "ideal": ("Of the throughput that the stages, timed with both cores busy, allow under 1F1B",
              {("W1", 16): 0.95, ("W2", 16): 0.95}),
    "kernels": ("oneDNN's kernels against libtorch's choice, two stages, each with its fastest schedule",
                {(w, m): None for w in ("W1", "W2", "W4") for m in MS}),
    "memory": ("Resident memory of the whole run under 1F1B, of that of PyTorch's processes", {("W1", 16): 0.6}),
}

# Claims with one row for libtorch's choice of kernels and one for oneDNN's.
BOTH_KERNELS = ("one-process", "two-cores", "pytorch", "torchgpipe", "deepspeed", "processes", "processes-deepspeed")


def merged(rows, new):
    """`rows` with those of `new` in place of what was measured of the same before."""
    taken = {(r["w"], key(r), r["m"]) for r in new}
    return [r for r in rows if (r["w"], key(r), r["m"]) not in taken] + new


def quartiles(numbers):
    if len(numbers) < 2:
        return [numbers[0]] * 3
    return statistics.quantiles(numbers, n=4, method="inclusive")


def kept(row):
    """The samples that count."""
    good = [s for s in row["samples"] if s["ok"]]
    return good if len(good) >= FEW else sorted(row["samples"], key=lambda s: s["other"])[:max(1, len(row["samples"]) // 2)]


class Results:
    def __init__(self, path):
        with open(path) as f:
            self.all = json.load(f)
        self.rows = {(r["w"], key(r), r["m"]): r for r in self.all["rows"]}
        self.workloads = [w for w in ("W1", "W2", "W3", "W4") if any(k[0] == w for k in self.rows)]

    def configs(self, w):
        """One row of each candidate."""
        some = {}
        for (work, k, _), r in self.rows.items():
            if work == w and r["cand"] != "IDEAL":
                some.setdefault(k, r)
        return some

    def at(self, w, m, fits):
        """Rows that count, of candidates that fit."""
        found = [r for (work, _, n), r in self.rows.items() if work == w and n == m and fits(r)]
        return [r for r in found if self.wrong(r) is None]

    def reference(self, w, m):
        """PyTorch's first loss in one process, and how far others may be from it: 1e-5, or twice what its rows with
        one thread and with more are apart. W4's batch norm of one image makes much of the last bits."""
        rows = [r for (work, _, n), r in self.rows.items() if work == w and n == m and r.get("losses")]
        eager = {r["threads"]: r["losses"][0] for r in rows if r["cand"] == "P0"}
        loss = eager.get(1, rows[0]["losses"][0])
        apart = max((abs(own - loss) for own in eager.values()), default=0.0)
        return loss, max(TOLERANCE * max(1.0, abs(loss)), 2 * apart)

    def wrong(self, r):
        """Why a row does not count."""
        if "error" in r:
            return r["error"]
        if not r["samples"]:
            return "no samples"
        if r["cand"] == "IDEAL":
            return None
        if not r["losses"]:
            return "no losses"
        loss, (reference, tolerance) = r["losses"][0], self.reference(r["w"], r["m"])
        if abs(loss - reference) > tolerance:
            return f"its first loss is {loss}, not {reference}"
        return None


def times(r):
    return [s["ms"] for s in kept(r)]


def median(r):
    return statistics.median(times(r))


def fastest(rows):
    return min(rows, key=median) if rows else None


def ratios(theirs, ours):
    """theirs / ours, round by round where both were undisturbed."""
    mine = {s["round"]: s["ms"] for s in kept(ours)}
    pairs = [s["ms"] / mine[s["round"]] for s in kept(theirs) if s["round"] in mine]
    return pairs or [median(theirs) / median(ours)]


def one_f_one_b(p, m):
    """Per stage, what it does: ('F' or 'B', micro-batch)."""
    for s in range(p):
        first = min(m, p - s)
        order, done = [("F", i) for i in range(first)], first
        for b in range(m):
            order.append(("B", b))
            if done < m:
                order.append(("F", done))
                done += 1
        yield order


def ideal_step(stages, m):
    """A 1F1B step where handing over costs nothing, from [forward, backward, update] of each stage."""
    p, lists = len(stages), list(one_f_one_b(len(stages), m))
    clock, at, ends = [0.0] * p, [0] * p, {}
    while any(at[s] < len(lists[s]) for s in range(p)):
        for s in range(p):
            while at[s] < len(lists[s]):
                kind, i = lists[s][at[s]]
                before = (("F", s - 1, i) if s else None) if kind == "F" else (("B", s + 1, i) if s < p - 1 else None)
                if before and before not in ends:
                    break
                clock[s] = max(clock[s], ends.get(before, 0.0)) + stages[s][0 if kind == "F" else 1]
                ends[kind, s, i] = clock[s]
                at[s] += 1
    return max(c + stage[2] for c, stage in zip(clock, stages)) * 1e3


def of_ideal(results, w, m):
    ideal = results.at(w, m, lambda r: r["cand"] == "IDEAL")
    ours = results.at(w, m, lambda r: (r["cand"], r["p"], r["ranks"], r["sched"]) == (OURS, 2, 1, "1f1b"))
    if not ideal or not ours:
        return None
    as_steps = dict(ideal[0], samples=[dict(s, ms=ideal_step(s["together"], m)) for s in ideal[0]["samples"]])
    return as_steps, ours[0]


def compared(results, claim, w, m, kernels):
    """(theirs, ours) of a claim, and the ratios of one to the other; `kernels` is who ours are, OURS or ONEDNN."""
    def ours(p=2, ranks=1, d=1, cand=kernels, sched=None):
        return lambda r: ((r["cand"], r["p"], r["ranks"], r.get("d", 1), r["threads"]) == (cand, p, ranks, d, 1)
                          and sched in (None, r["sched"]))

    def pair(theirs, own):
        best, rows = fastest(results.at(w, m, theirs)), results.at(w, m, own)
        # Samples of one run were taken in turn.
        in_turn = [r for r in rows if best and r["run"] == best["run"]]
        mine = fastest(in_turn or rows)
        return (best, mine, ratios(best, mine)) if best and mine else None

    if claim == "own-processes":
        return pair(ours(sched="1f1b"), ours(ranks=2, sched="1f1b"))
    if claim == "exported":
        return pair(ours(sched="1f1b"), ours(cand=EXPORTED, sched="1f1b"))
    if claim == "kernels":
        return pair(ours(), ours(cand=ONEDNN))
    if claim == "memory":
        told = lambda fits: lambda r: "rss_peak_mb" in r and fits(r)  # noqa: E731
        found = pair(told(lambda r: (r["cand"], r["ranks"], r["sched"]) == ("P1", 2, "1f1b")), told(ours(sched="1f1b")))
        return found and (*found[:2], [sum(found[1]["rss_peak_mb"]) / sum(found[0]["rss_peak_mb"])])
    if claim == "ideal":
        found = of_ideal(results, w, m)
        return found and (*found, ratios(*found))
    eager = lambda r: r["cand"] == "P0" and r["threads"] > 1  # noqa: E731
    pipelining = lambda r: r["cand"] == "P1" and r["ranks"] == 2  # noqa: E731
    deepspeed = lambda r: r["cand"] == "P3" and r["p"] == 2  # noqa: E731
    anyhow = lambda r: (r["cand"], r["ranks"], r.get("d", 1)) == (kernels, 1, 1)  # noqa: E731
    return pair(*{"one-process": (eager, ours()),
                  "two-cores": (eager, anyhow),
                  "exported-eager": (eager, ours(cand=EXPORTED)),
                  "pytorch": (pipelining, ours()),
                  "processes": (pipelining, ours(ranks=2)),
                  "torchgpipe": (lambda r: r["cand"] == "P2" and r["p"] == 2, ours()),
                  "deepspeed": (deepspeed, ours()),
                  "processes-deepspeed": (deepspeed, ours(ranks=2)),
                  "replicas": (lambda r: r["cand"] == "P4", ours(p=1, ranks=2, d=2))}[claim])


def table(head, body):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(line) + " |" for line in body]) + "\n"


def number(x):
    return f"{x:.0f}" if x >= 1000 else f"{x:.1f}" if x >= 100 else f"{x:.2f}"


def cell(results, r):
    if r is None:
        return ""
    if results.wrong(r):
        return "–"
    low, mid, high = quartiles(times(r))
    few = sum(s["ok"] for s in r["samples"])
    return f"{number(mid)} ({number(low)}–{number(high)})" + ("" if few >= FEW else " disturbed")


def step_table(results, w):
    ms = [m for m in MS if any(k[0] == w and k[2] == m for k in results.rows)]
    body = [[label(some)] + [cell(results, results.rows.get((w, k, m))) for m in ms]
            for k, some in results.configs(w).items()]
    return table([f"{w}, ms a step"] + [f"m = {m}" for m in ms], body)


def claim_lines(results, claim):
    kernels = (OURS, ONEDNN) if claim in BOTH_KERNELS else (OURS,)
    for ((w, m), wanted), own in itertools.product(CLAIMS[claim][1].items(), kernels):
        found = compared(results, claim, w, m, own)
        if not found:
            continue
        theirs, ours, pairs = found
        low, mid, high = quartiles(pairs)
        less = claim == "memory"
        unit = (lambda r: f"{sum(r['rss_peak_mb']):.0f} MB") if less else (lambda r: f"{number(median(r))} ms")
        holds = None if wanted is None else mid <= wanted if less else mid >= wanted
        # Load from other programs is unevenly spread over samples, which rules out a verdict. Bytes do not
        # depend on it.
        quiet = less or all(sum(s["ok"] for s in r["samples"]) >= FEW for r in (theirs, ours))
        yield dict(claim=claim, workload=w, m=m, ours=label(ours), ours_value=unit(ours), theirs=label(theirs),
                   theirs_value=unit(theirs), ratio=mid, quartiles=[low, high], wanted=wanted, holds=holds if quiet else None, disturbed=not quiet)


def claim_table(lines):
    body = []
    for x in lines:
        low, high = x["quartiles"]
        spread = f" [{low:.3f}, {high:.3f}]" if low != high else ""
        bound = "" if x["wanted"] is None else f"{'at most' if x['claim'] == 'memory' else 'at least'} {x['wanted']:.3g}"
        holds = "disturbed" if x["disturbed"] else {None: "", True: "holds", False: "**does not hold**"}[x["holds"]]
        body.append([x["workload"], str(x["m"]), x["ours"], x["ours_value"], x["theirs"], x["theirs_value"],
                     f"**{x['ratio']:.3f}**{spread}", bound, holds])
    return table(["", "m", "this library", "", "compared with", "", "ratio", "claimed", ""], body)


def left_out(results):
    lines = []
    for (w, _, m), r in results.rows.items():
        why = results.wrong(r)
        if why:
            lines.append(f"- {w}, m = {m}, {label(r)}: {why[:200]}")
    return "\n".join(lines)


def runs(rows):
    """The runs that the rows are of, each once, in their order."""
    found = []
    for row in rows:
        if row["run"] not in found:
            found.append(row["run"])
    return found


def origin(results, rows):
    """On what machine, when and by which commands the rows were measured."""
    lines = [f"{r['date']}, revision {r['revision']}: `{r['command']}`" for r in runs(rows)]
    how = "Medians, quartiles in brackets, of samples taken in turn; ratios are taken pair by pair."
    start = f"Machine class: {results.all['machine']}. "
    if len(lines) == 1:
        return f"{start}{lines[0]}. {how}"
    listed = "\n".join(f"- {line}" for line in lines)
    return f"{start}{how} Measured by\n\n{listed}\n\n(with `--add` to all but the first, to keep the others' rows)"


def write(results, folder):
    """A folder a claim: what is claimed, the table, where it is from, and every sample."""
    for claim, (title, cases) in CLAIMS.items():
        lines = list(claim_lines(results, claim))
        if not lines:
            continue
        place = os.path.join(folder, claim)
        os.makedirs(place, exist_ok=True)
        rows = [dict(r, samples=[{k: round(v, 3) if isinstance(v, float) else v for k, v in s.items()} for s in r.get("samples", [])])
                for r in results.all["rows"]
                if any(r["w"] == x["workload"] and r["m"] == x["m"] and label(r) in (x["ours"], x["theirs"]) for x in lines)]
        with open(os.path.join(place, "results.json"), "w") as f:
            json.dump(dict(machine=results.all["machine"], claim=title, lines=lines, rows=rows), f, separators=(",", ":"))
            f.write("\n")
        of = results.all["rows"] if claim == "one-process" else rows
        text = f"# {title}\n\n{claim_table(lines)}\n{origin(results, of)}\n"
        if claim == "one-process":
            text += "\n## Everything\n\n" + "\n".join(step_table(results, w) for w in results.workloads)
            missing = left_out(results)
            text += f"\nRows that do not count, and why:\n\n{missing}\n" if missing else ""
        with open(os.path.join(place, "README.md"), "w") as f:
            f.write(text)


def main(path, folder=None):
    results = Results(path)
    for w in results.workloads:
        print(step_table(results, w))
    missing = left_out(results)
    if missing:
        print("Rows that do not count, and why:\n\n" + missing + "\n")
    summary = []
    for claim, (title, _) in CLAIMS.items():
        lines = list(claim_lines(results, claim))
        summary += lines
        if lines:
            print(title + "\n\n" + claim_table(lines))
    with open(os.path.join(os.path.dirname(path), "claims.json"), "w") as f:
        json.dump(summary, f, indent=1)
    print(origin(results, results.all["rows"]) + f"\nEvery sample in {path}")
    if folder:
        write(results, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
