"""One rank of one candidate.  argv[1] = JSON config; commands on stdin; JSON replies on stdout.

config keys: cand, sched, w, p (stages), d (replicas), ranks, rank, ms (list of micro-batch counts), threads, chk, store, port
commands   : "run K m" -> {"t0","t1" (CLOCK_MONOTONIC s),"k",...}     "quit" -> memory + losses
"""
import json
import os
import sys
import time
from contextlib import nullcontext

cfg = json.loads(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
OUT = os.fdopen(os.dup(1), "w", buffering=1)     # protocol channel
os.dup2(2, 1)                                    # libraries' prints go to stderr

import numpy as np  # noqa: E402,F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(cfg["threads"])
torch.set_num_interop_threads(1)


def status(key):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(key + ":"):
                return round(int(line.split()[1]) / 1024, 1)


import workloads  # noqa: E402

BASE = {"rss_base_mb": status("VmRSS"), "anon_base_mb": status("RssAnon")}


class Engine:
    """step() runs forward+backward+optimizer once and returns the loss tensor (or None)."""

    def __init__(self, m):
        self.w = workloads.Workload(cfg["w"])
        self.m, self.p, self.rank = m, cfg["p"], cfg["rank"]
        self.losses, self.nstep = [], 0
        self.build()

    def finish(self, opt):
        opt.step()
        opt.zero_grad()


class P0(Engine):
    """Plain eager; m>1 = m-way gradient accumulation."""

    def build(self):
        self.model = self.w.seq()
        self.opt = self.w.opt(list(self.model.parameters()))

    def step(self):
        w, m = self.w, self.m
        total = 0.0
        for x, y in zip(w.x.chunk(m), w.y.chunk(m)):
            loss = w.loss(self.model(x), y)
            if m > 1:
                loss = loss / m
            loss.backward()
            total = total + loss.detach()
        self.finish(self.opt)
        return total


class P1(Engine):
    """torch.distributed.pipelining over gloo; p stages on `ranks` ranks."""

    def build(self):
        from torch.distributed import pipelining as pp
        cls = {"gpipe": pp.ScheduleGPipe, "1f1b": pp.Schedule1F1B,
               "i1f1b": pp.ScheduleInterleaved1F1B, "izb": pp.ScheduleInterleavedZeroBubble,
               "zbv": pp.ScheduleZBVZeroBubble}[cfg["sched"]]
        r, n = self.rank, cfg["ranks"]
        if self.p == n:
            mine = [r]
        elif cfg["sched"] == "zbv":
            mine = [r, self.p - 1 - r]
        else:
            mine = list(range(r, self.p, n))
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method=f"file://{cfg['store']}", rank=r, world_size=n)
        mods = self.w.stages(self.p)
        stages = [pp.PipelineStage(mods[i], i, self.p, torch.device("cpu")) for i in mine]
        if cfg["sched"] == "zbv":     # its start-up exchange sends to its own rank, which gloo refuses
            for s in stages:
                s._get_init_p2p_neighbors_ops = lambda: []
        self.first, self.last = 0 in mine, self.p - 1 in mine
        arg = stages if len(stages) > 1 or self.p != n else stages[0]
        self.sch = cls(arg, self.m, loss_fn=self.w.loss)
        self.opt = self.w.opt([q for i in mine for q in mods[i].parameters()])
        self.w.layers = None

    def step(self):
        losses = [] if self.last else None
        self.sch.step(*((self.w.x,) if self.first else ()), target=self.w.y if self.last else None,
                      losses=losses, return_outputs=False)
        self.finish(self.opt)
        return torch.stack([x.detach() for x in losses]).mean() if self.last else None


def per_partition_workers(mod_pipeline, mod_worker):
    """torchgpipe starts one worker thread per *device*, so all 'cpu' partitions share one thread.
    This replacement starts one thread per partition (forward then overlaps)."""
    from contextlib import contextmanager
    from queue import Queue
    from threading import Thread

    @contextmanager
    def spawn(devices):
        ins, outs = [], []
        for d in devices:
            i, o = Queue(), Queue()
            ins.append(i)
            outs.append(o)
            Thread(target=mod_worker.worker, args=(i, o, d, torch.is_grad_enabled()), daemon=True).start()
        try:
            yield ins, outs
        finally:
            for i in ins:
                i.put(None)
            for o in outs:
                while o.get() != (False, None):
                    pass
    mod_pipeline.spawn_workers = spawn


class P2(Engine):
    """torchgpipe, as shipped ('P2') or with one worker thread per partition ('P2x')."""

    def build(self):
        import torchgpipe
        if cfg["cand"] == "P2x":
            per_partition_workers(sys.modules["torchgpipe.pipeline"], sys.modules["torchgpipe.worker"])
        self.model = torchgpipe.GPipe(self.w.seq(), self.w.cuts[self.p], devices=["cpu"] * self.p,
                                      chunks=self.m, checkpoint=cfg["chk"])
        self.opt = self.w.opt(list(self.model.parameters()))

    def step(self):
        loss = self.w.loss(self.model(self.w.x), self.w.y)
        loss.backward()
        self.finish(self.opt)
        return loss.detach()


class P3(Engine):
    """DeepSpeed PipelineEngine (CPU accelerator, gloo)."""

    def build(self):
        r, n = self.rank, cfg["ranks"]
        os.environ.update(DS_ACCELERATOR="cpu", RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(n),
                          LOCAL_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(cfg["port"]))
        import deepspeed
        from deepspeed.pipe import PipelineModule
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        mods = self.w.stages(self.p)
        model = PipelineModule(mods, num_stages=self.p, loss_fn=self.w.loss, partition_method="uniform",
                               activation_checkpoint_interval=0)
        params = [q for q in model.parameters() if q.requires_grad]
        self.eng, self.opt, _, _ = deepspeed.initialize(
            model=model, optimizer=self.w.opt(params), dist_init_required=False,
            config={"train_batch_size": self.w.batch, "train_micro_batch_size_per_gpu": self.w.batch // self.m,
                    "gradient_accumulation_steps": self.m, "steps_per_print": 10 ** 9, "gradient_clipping": 0.0})
        self.w.layers = None

    def step(self):
        it = iter(list(zip(self.w.x.chunk(self.m), self.w.y.chunk(self.m))))
        return self.eng.train_batch(data_iter=it)


class P4(Engine):
    """DistributedDataParallel over gloo: each rank has its part of the micro-batches."""

    def build(self):
        from torch.nn.parallel import DistributedDataParallel
        r, n = self.rank, cfg["ranks"]
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method=f"file://{cfg['store']}", rank=r, world_size=n)
        mine = slice(r * self.m // n, (r + 1) * self.m // n)
        self.batches = list(zip(self.w.x.chunk(self.m), self.w.y.chunk(self.m)))[mine]
        self.model = DistributedDataParallel(self.w.seq())
        self.opt = self.w.opt(list(self.model.parameters()))

    def step(self):
        total, n = 0.0, len(self.batches)
        for i, (x, y) in enumerate(self.batches):
            with nullcontext() if i == n - 1 else self.model.no_sync():
                loss = self.w.loss(self.model(x), y) / n
                loss.backward()
            total = total + loss.detach()
        self.finish(self.opt)
        return total


class IDEAL(Engine):
    """Stage `rank` of p in isolation: mean forward / backward per micro-batch, optimizer per step."""

    def build(self):
        w, m = self.w, self.m
        mods = w.stages(self.p)
        with torch.no_grad():
            a = w.x[:w.batch // m]
            for s in mods[:self.rank]:
                a = s(a)
            g = mods[self.rank](a)
        self.a = a.clone() if self.rank == 0 else a.clone().requires_grad_()
        self.g = torch.ones_like(g) * 1e-3
        self.y = w.y[:w.batch // m].clone()
        self.stage, self.is_last = mods[self.rank], self.rank == self.p - 1
        self.opt = w.opt(list(self.stage.parameters()))
        w.layers = None
        self.acc = []

    def step(self):
        pc, tf, tb = time.perf_counter, 0.0, 0.0
        for _ in range(self.m):
            t = pc()
            o = self.stage(self.a)
            if self.is_last:
                o = self.w.loss(o, self.y) / self.m
            t1 = pc()
            o.backward() if self.is_last else o.backward(self.g)
            t2 = pc()
            tf, tb = tf + t1 - t, tb + t2 - t1
            self.a.grad = None
        t = pc()
        self.finish(self.opt)
        self.acc.append((tf / self.m, tb / self.m, pc() - t))
        return None


def main():
    cls = {"P2x": P2}.get(cfg["cand"]) or globals()[cfg["cand"]]
    engines = {m: cls(m) for m in cfg["ms"]}
    print(json.dumps({"ready": 1}), file=OUT)
    for line in sys.stdin:
        cmd = line.split()
        if cmd[0] == "quit":
            break
        k, eng = int(cmd[1]), engines[int(cmd[2])]
        if hasattr(eng, "acc"):
            eng.acc.clear()
        c0, t0 = time.process_time(), time.monotonic()
        for _ in range(k):
            loss = eng.step()
            if eng.nstep < 3:
                eng.losses.append(None if loss is None else round(float(loss), 6))
            eng.nstep += 1
        r = {"t0": t0, "t1": time.monotonic(), "k": k, "cpu": time.process_time() - c0}
        if hasattr(eng, "acc"):
            r["ideal"] = [sorted(v)[len(v) // 2] for v in zip(*eng.acc)]
        print(json.dumps(r), file=OUT)
    print(json.dumps({"losses": {m: e.losses for m, e in engines.items()}, "rss_peak_mb": status("VmHWM"),
                      "rss_anon_mb": status("RssAnon"), **BASE}), file=OUT)
    OUT.flush()
    os._exit(0)


main()
