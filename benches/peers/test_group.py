"""That idle workers take no time from those that are measured: python3 -m unittest benches/peers/test_group.py"""
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from group import Group

# Answers like a worker, and polls while it waits, as workers of gloo and DeepSpeed do.
POLLING = """#!{python}
import json, os, select, sys, time
print(json.dumps(dict(ready=1)), flush=True)
while True:
    if not select.select([0], [], [], 0)[0]:
        continue
    line = os.read(0, 100).split()
    if line[0] == b"quit":
        print(json.dumps(dict(losses={{}}, rss_peak_mb=1, rss_base_mb=1)), flush=True)
        break
    start, cpu = time.monotonic(), time.process_time()
    while time.process_time() < cpu + 0.02:
        pass
    print(json.dumps(dict(t0=start, t1=time.monotonic(), cpu=time.process_time() - cpu)), flush=True)
"""


def cpu_of(pid):
    """Seconds of processor time of a process."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def state(pid):
    """`T` of a stopped one."""
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


class Idle(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        worker = os.path.join(self.folder.name, "worker")
        with open(worker, "w") as f:
            f.write(POLLING.format(python=sys.executable))
        os.chmod(worker, 0o700)
        cfg = dict(cand="gpipe-rs", w="W3", ms=[1], ranks=2, threads=1, d=1)
        self.groups = [Group(dict(cfg), worker) for _ in range(2)]
        for group in self.groups:
            group.ready()

    def tearDown(self):
        for group in self.groups:
            group.kill()
            for file in group.logs + [pipe for p in group.ps for pipe in (p.stdin, p.stdout)]:
                file.close()
        self.folder.cleanup()

    def test_workers_are_stopped_unless_they_are_measured(self):
        idle, measured = self.groups
        # A signal takes some time.
        end = time.monotonic() + 30
        while {state(p.pid) for p in idle.ps} != {"T"} and time.monotonic() < end:
            pass
        before = [cpu_of(p.pid) for p in idle.ps]
        for _ in range(20):
            measured.sample(1, 0)
        self.assertEqual([cpu_of(p.pid) for p in idle.ps], before)
        self.assertEqual(len(measured.samples[1]), 20)

    def test_stopped_workers_go_on_and_end(self):
        for group in self.groups:
            group.sample(1, 0)
            [row] = group.close()
            self.assertNotIn("error", row)
            self.assertEqual([p.poll() is None for p in group.ps], [False, False])

    def test_stopped_workers_end_with_their_parent(self):
        parent = os.fork()
        if parent == 0:
            group = Group(dict(self.groups[0].cfg), self.groups[0].ps[0].args[0])
            group.ready()
            with open(os.path.join(self.folder.name, "pids"), "w") as f:
                f.write(" ".join(str(p.pid) for p in group.ps))
            os._exit(0)
        os.waitpid(parent, 0)
        with open(os.path.join(self.folder.name, "pids")) as f:
            pids = f.read().split()
        end = time.monotonic() + 30
        alive = lambda pid: os.path.exists(f"/proc/{pid}") and state(pid) != "Z"
        while any(map(alive, pids)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(any(map(alive, pids)))


if __name__ == "__main__":
    unittest.main()
