"""Steps of a pipeline over two processes and a slow link, measured and simulated.

Makes two network namespaces with a link between them (wire.c), runs the worker in each, and prints
a table. Needs root and /dev/net/tun; says so where it has neither.

    links.py WORKER [--wire WIRE] [--only WORDS] [--json FILE]
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

PORT = 29600
# Name, delay one way in us, bits a second.
LINKS = [
    ("10 ms", 10_000, 0),
    ("1 Gbit/s", 0, 1e9),
    ("10 ms, 1 Gbit/s", 10_000, 1e9),
]


def tasks():
    """Stages, schedule, micro-batches, bytes of a value, ms of a forward."""
    for micro, size, forward in ((8, 64 << 10, 5), (8, 1 << 20, 10), (32, 64 << 10, 2), (16, 1 << 20, 5)):
        yield dict(stages="fixed", schedule="1f1b", micro_batches=micro, bytes=size, forward_ms=forward)
    yield dict(stages="fixed", schedule="gpipe", micro_batches=16, bytes=1 << 20, forward_ms=5)
    yield dict(stages="layers", schedule="1f1b", micro_batches=8, bytes=1 << 20, forward_ms=0)


def refuse(why):
    sys.exit(f"links.py: {why}: network namespaces cannot be made here")


class Namespaces:
    """Some of them, every `node` of which are a node, with links between the nodes."""

    def __init__(self, wire, delay, bits, settings, count=2, node=1):
        self.names = [f"gpipe-links-{os.getpid()}-{i}" for i in range(count)]
        self.folders = [f"/etc/netns/{name}" for name in self.names]
        for name, folder in zip(self.names, self.folders):
            subprocess.check_call(["ip", "netns", "add", name])
            # libtorch looks up the name of each address; nothing here answers.
            os.makedirs(folder)
            with open(f"{folder}/hosts", "w") as hosts:
                hosts.write("127.0.0.1 localhost\n" + "".join(f"10.9.0.{i + 1} host{i}\n" for i in range(count)))
        self.wire = subprocess.Popen(
            [wire, str(delay), str(bits), str(node), *self.names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in self.names:
            # An algorithm that every kernel has and allows. Some systems use bbr, which spreads a message
            # over a part of the round-trip time.
            for setting in settings:
                subprocess.check_call(["ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.tcp_{setting}"])
        if self.wire.stdout.readline().strip() != "up":
            self.close()
            refuse("no link")

    def start(self, rank, members, worker, task, environment):
        words = dict(RANK=rank, WORLD_SIZE=len(members), LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR=f"10.9.0.{members[0] + 1}", MASTER_PORT=PORT)
        words = {key: str(value) for key, value in words.items()}
        command = ["ip", "netns", "exec", self.names[members[rank]], worker, json.dumps(task)]
        return subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1", **words, **environment}, stdout=subprocess.PIPE, text=True
        )

    def lines(self, worker, task, environment, members):
        """What rank 0 of the processes in these namespaces answers."""
        ranks = range(len(members))
        all_of_them = [self.start(rank, members, worker, task, environment) for rank in ranks]
        try:
            said = [own.communicate(timeout=300)[0] for own in all_of_them]
        except subprocess.TimeoutExpired:
            for own in all_of_them:
                own.kill()
            raise
        if any(own.returncode for own in all_of_them):
            raise RuntimeError("a worker failed")
        return [json.loads(line) for line in said[0].splitlines()]

    def run(self, worker, task, environment):
        return self.lines(worker, task, environment, [0, 1])[-1]

    def close(self):
        self.wire.stdin.close()
        self.wire.wait(5)
        for name, folder in zip(self.names, self.folders):
            subprocess.call(["ip", "netns", "del", name])
            shutil.rmtree(folder, ignore_errors=True)


def size_of(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("worker")
    parse.add_argument("--wire")
    parse.add_argument("--only", help="measure only what has this in its line")
    parse.add_argument("--steps", type=int, default=15)
    parse.add_argument("--congestion", default="reno", help="TCP's congestion control")
    parse.add_argument("--slow-start-after-idle", action="store_true", help="as Linux has it by default")
    parse.add_argument("--json", help="all numbers, for the table of all benchmarks")
    args = parse.parse_args()
    if os.geteuid() != 0:
        refuse("this is not root")
    if not os.path.exists("/dev/net/tun"):
        refuse("there is no /dev/net/tun")
    folder = tempfile.mkdtemp()
    wire = args.wire or f"{folder}/wire"
    if not args.wire:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wire.c")
        subprocess.check_call(["cc", "-O2", "-o", wire, source])
    print("| link | stages | m | a value | ahead | measured | simulated | difference | call | simulated | difference |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    settings = [f"congestion_control={args.congestion}", f"slow_start_after_idle={int(args.slow_start_after_idle)}"]
    for name, delay, bits in LINKS:
        link = Namespaces(wire, delay, bits, settings)
        try:
            for task in tasks():
                for ahead in (True, False):
                    about = f"| {name} | {task['stages']}, {task['schedule']} | {task['micro_batches']} | {size_of(task['bytes'])} | {'yes' if ahead else 'no'} |"
                    if args.only and args.only not in about:
                        continue
                    environment = {} if ahead else {"GPIPE_RECEIVE_AHEAD": "0"}
                    task = dict(task, what="steps", steps=args.steps, pause_ms=0)
                    row = link.run(args.worker, task, environment)
                    rows.append(dict(row, link=name, ahead=ahead, **task))
                    off = 100 * (row["measured_ms"] / row["simulated_ms"] - 1)
                    call = 100 * (row["call_ms"] / row["simulated_call_ms"] - 1)
                    print(
                        f"{about} {row['measured_ms']:.1f} ms | {row['simulated_ms']:.1f} ms | {off:+.1f} % "
                        f"| {row['call_ms']:.1f} ms | {row['simulated_call_ms']:.1f} ms | {call:+.1f} % |",
                        flush=True,
                    )
        finally:
            link.close()
    shutil.rmtree(folder)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
