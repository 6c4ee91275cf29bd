"""The processes of one candidate, and what a sample of its steps is.

They are stopped (SIGSTOP) unless they run a sample: idle workers of gloo and DeepSpeed poll, and would take time
from the candidate that is measured and keep the machine from ever being quiet.
"""
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

from candidates import EXPORTED, ONEDNN, OURS, OWN

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = sys.executable
TMP = tempfile.mkdtemp(prefix="peers_")
PORT = [29600]


def steps(w, m):
    """Steps of a sample: for the small ones so many that it lasts a tenth of a second at least."""
    if w == "W3":
        return {1: 60, 2: 40, 4: 30}.get(m, 20)
    return 1


def cpu_busy():
    """Seconds of processor time so far, of all processes."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    return (sum(v) - v[3] - v[4] - v[7]) / os.sysconf("SC_CLK_TCK")


def killed_with_parent():
    """Ends this process when its parent ends: a stopped one would not notice."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG


def whole(told, replicas):
    """The losses of the whole mini-batch, of what each process tells: those of its share, if it is a replica."""
    told = [x for x in told if x and any(y is not None for y in x)]
    if replicas > 1:
        return [sum(parts) / replicas for parts in zip(*told)]
    return told[0] if told else None


def exported(w):
    """The file of a workload's model, made once a run by a process of its own."""
    path = os.path.join(TMP, f"{w}.pt2")
    if not os.path.exists(path):
        subprocess.run([PYTHON, "-W", "ignore", os.path.join(HERE, "workloads.py"), "--export", w, path], check=True)
    return path


class Group:
    def __init__(self, cfg, ours):
        self.cfg, self.err, self.logs, self.ps = cfg, None, [], []
        self.samples = {m: [] for m in cfg["ms"]}
        PORT[0] += 1
        threads = str(cfg["threads"])
        env = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, GLOO_SOCKET_IFNAME="lo",
                   PYTHONUNBUFFERED="1", PYTHONWARNINGS="ignore", TOKENIZERS_PARALLELISM="false",
                   DS_ACCELERATOR="cpu", PATH=os.path.dirname(PYTHON) + ":" + os.environ["PATH"])
        more = {"program": exported(cfg["w"])} if cfg["cand"] == EXPORTED else {}
        more["kernels"] = "onednn" if cfg["cand"] == ONEDNN else "libtorch"
        for rank in range(cfg["ranks"]):
            log = open(os.path.join(TMP, f"log{PORT[0]}_{rank}"), "w+b")
            self.logs.append(log)
            given = json.dumps(dict(cfg, **more, rank=rank, store=os.path.join(TMP, f"store{PORT[0]}"), port=PORT[0]))
            command = [ours] if cfg["cand"] in OWN else [PYTHON, os.path.join(HERE, "worker.py")]
            self.ps.append(subprocess.Popen(command + [given], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log, env=env, bufsize=0,
                                            preexec_fn=killed_with_parent))

    def fail(self, why):
        if self.err:
            return
        tails = []
        for log in self.logs:
            log.seek(0)
            lines = [x for x in log.read().decode(errors="replace").strip().splitlines() if x.strip()]
            tails.append(lines[-1][:200] if lines else "")
        self.err = f"{why}: " + " | ".join(t for t in tails if t)
        self.kill()

    def kill(self):
        for p in self.ps:
            p.kill()
            p.wait()

    def receive(self, p, timeout):
        end, got = time.time() + timeout, b""
        while not got.endswith(b"\n"):
            if not select.select([p.stdout], [], [], max(0, end - time.time()))[0]:
                raise TimeoutError(f"no answer in {timeout:.0f} s")
            part = os.read(p.stdout.fileno(), 1 << 16)
            if not part:
                raise EOFError("worker exited")
            got += part
        return json.loads(got)

    def call(self, command, timeout, ps=None):
        """The answers of `ps`, or of all, which run until all have answered."""
        if self.err:
            return None
        ps = ps or self.ps
        try:
            for p in ps:
                p.send_signal(signal.SIGCONT)
                p.stdin.write(command)
            answers = [self.receive(p, timeout) for p in ps]
            for p in ps:
                p.send_signal(signal.SIGSTOP)
            return answers
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            self.fail(f"{type(error).__name__} {error}")

    def ready(self):
        self.call(b"", 300)

    def sample(self, m, round_=None, timeout=300):
        """Some steps with m micro-batches; kept as round `round_`. Whether nobody else disturbed."""
        k = steps(self.cfg["w"], m)
        command = b"run %d %d\n" % (k, m)
        wall, own, system = time.time(), time.process_time(), cpu_busy()
        if self.cfg["cand"] == "IDEAL":     # each stage alone, then all at once
            alone = [self.call(command, timeout, [p]) for p in self.ps]
            both = self.call(command, timeout)
            if self.err:
                return False
            mine = sum(a[0]["cpu"] for a in alone) + sum(b["cpu"] for b in both)
            got = dict(alone=[a[0]["ideal"] for a in alone], together=[b["ideal"] for b in both])
        else:
            answers = self.call(command, timeout)
            if answers is None:
                return False
            mine = sum(a["cpu"] for a in answers)
            span = max(a["t1"] for a in answers) - min(a["t0"] for a in answers)
            got = dict(ms=span / k * 1e3, cpu=mine / k * 1e3)
        wall = time.time() - wall
        other = max(0.0, cpu_busy() - system - mine - (time.process_time() - own))
        got.update(round=round_, other=other, ok=other <= 0.05 * wall + 0.03)
        if round_ is not None:
            self.samples[m].append(got)
        return got["ok"]

    def undisturbed(self, m):
        return sum(s["ok"] for s in self.samples[m])

    def close(self):
        """One row for each m."""
        end = self.call(b"quit\n", 60)
        self.kill()
        rows = []
        for m in self.cfg["ms"]:
            row = dict(self.cfg, m=m)
            del row["ms"]
            rows.append(row)
            if self.err:
                row["error"] = self.err
                continue
            row["samples"] = self.samples[m]
            told = [e["losses"].get(str(m)) for e in end]
            row["losses"] = whole(told, self.cfg["d"] if self.cfg["cand"] != OURS else 1)
            if len(self.cfg["ms"]) == 1:    # a process's peak is that of one m only then
                for name in ("rss_peak_mb", "rss_base_mb"):
                    row[name] = [e[name] for e in end]
        return rows
