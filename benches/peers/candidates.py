"""Who is measured: every way of training a workload, with what its rows are called.

A candidate is a dictionary that `worker.py` (or, for `gpipe-rs`, `worker/`) is started with:
cand, sched, chk (torchgpipe's checkpoint mode), w, p (stages), d (replicas of them), ranks
(processes), ms, threads; program, for a file that PyTorch exported.
"""

MS = [1, 2, 4, 8, 16]
LIGHT = ("W2", "W3")        # small enough to keep every m in one process

OURS = "gpipe-rs"
EXPORTED = "PT2"            # the same engine, with the model as PyTorch exported it
ONEDNN = "oneDNN"           # the same engine, with oneDNN's kernels in place of libtorch's choice
OWN = (OURS, EXPORTED, ONEDNN)
OUR_SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "interleaved-zb", "zbv")

NAMES = {"P0": "PyTorch, one process", "P1": "torch.distributed.pipelining", "P2": "torchgpipe",
         "P2x": "torchgpipe with a thread a stage (patched)", "P3": "DeepSpeed",
         "P4": "DistributedDataParallel", OURS: OURS, EXPORTED: "gpipe-rs, the model as .pt2",
         ONEDNN: "gpipe-rs with oneDNN", "IDEAL": "ideal"}
SCHEDULES = {"i1f1b": "Interleaved1F1B", "izb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble",
             "gpipe": "GPipe", "1f1b": "1F1B"}


def candidates(w, cores):
    """All for workload w, the uncomfortable one first."""
    out = []

    def add(cand, p=1, ranks=1, sched="", chk="", threads=1, ms=MS, d=1):
        # torch.distributed.pipelining refuses fewer micro-batches than stages under these.
        ms = [m for m in ms if cand != "P1" or sched in ("gpipe",) or m >= p]
        # A replica needs at least one micro-batch.
        ms = [m for m in ms if m >= d]
        out.append(dict(cand=cand, sched=sched, chk=chk, w=w, p=p, d=d, ranks=ranks, ms=ms, threads=threads))

    add("P0", threads=cores)
    add("P0")
    add(OURS, 1, sched="1f1b")
    add(OURS, 1, sched="1f1b", threads=cores)
    for s in OUR_SCHEDULES:
        add(OURS, 2, sched=s)
    if w == "W1":
        for s in ("1f1b", "zbv"):
            add(EXPORTED, 2, sched=s)
    if w != "W3":                   # its products are too small to be oneDNN's
        add(ONEDNN, 1, sched="1f1b")
        add(ONEDNN, 1, sched="1f1b", threads=cores)
        for s in OUR_SCHEDULES:
            add(ONEDNN, 2, sched=s)
    for s in OUR_SCHEDULES:
        add(OURS, 2, 2, s)
    if w != "W3":
        for s in ("1f1b", "zbv"):
            add(ONEDNN, 2, 2, s)
    add("P1", 1, 1, "gpipe")
    for s in ("gpipe", "1f1b"):
        add("P1", 2, 2, s)
    for s in ("i1f1b", "izb", "zbv"):
        add("P1", 4, 2, s)
    for k in ("never", "except_last", "always"):
        add("P2", 2, chk=k)
    add("P2x", 2, chk="never")
    add("P3", 1)
    add("P3", 2, 2)
    if w != "W4":                   # replicas refuse batch norm, whose buffers move with every micro-batch
        for ranks in (1, 2):
            add(OURS, 1, ranks, "1f1b", d=2)
    add("P4", 1, 2, d=2)
    if w == "W3":
        for s in ("gpipe", "1f1b"):
            add(OURS, 4, sched=s)
            add("P1", 4, 4, s)
        add("P2", 4, chk="never")
        add("P3", 4, 4)
    add("IDEAL", 2, 2)
    return out


def key(row):
    """What a candidate is known by; with its m, a row."""
    return (*(row[k] for k in ("cand", "sched", "chk", "p", "ranks", "threads")), row.get("d", 1))


def label(row):
    how = row["sched"] if row["cand"] in OWN else SCHEDULES.get(row["sched"], row["sched"]) or row["chk"]
    if row["cand"] == "P2" or row["cand"] == "P2x":
        how = "checkpoint " + row["chk"].replace("_", " ")
    devices = row["p"] if row["cand"] in ("P2", "P2x", *OWN) else row["ranks"]
    d = row.get("d", 1)
    shape = f"p = {row['p']}, d = {d}" if d > 1 else f"p = {devices}"
    shape += ", 2 processes" if row["cand"] in OWN and row["ranks"] == 2 else ""
    if row["threads"] > 1 or row["cand"] == "P0":
        shape = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
    return NAMES[row["cand"]] + (f", {how}" if how else "") + f" ({shape})"


def chosen(configs, only):
    """Those that a comma list of cand, cand:sched, cand:chk, cand@p, cand:sched@p names."""
    if not only:
        return configs
    want = only.split(",")
    fits = lambda c: {c["cand"], f"{c['cand']}:{c['sched'] or c['chk']}", f"{c['cand']}@{c['p']}",  # noqa: E731
                      f"{c['cand']}:{c['sched']}@{c['p']}"}
    return [c for c in configs if fits(c) & set(want)]
