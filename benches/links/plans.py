"""The plan for four processes on two nodes, and the plans that it names next, measured.

Four network namespaces, two of which are a node, with a slow link between the nodes (wire.c). The links
are measured by plain TCP, the plan is made for them from a profile, and each stage waits as long as the
profile says; the plans have their turns one after the other. Needs root and /dev/net/tun.

    plans.py WORKER PROFILE
"""
import argparse
import os
import shutil
import subprocess
import tempfile

from links import Namespaces, refuse

# Name, delay one way in us, bits a second between nodes.
LINKS = [("2 ms, 1 Gbit/s", 2_000, 1e9), ("10 ms, 200 Mbit/s", 10_000, 2e8)]
SETTINGS = ["congestion_control=reno", "slow_start_after_idle=0"]


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("worker")
    parse.add_argument("profile")
    parse.add_argument("--batch", type=int, default=64)
    parse.add_argument("--micro", type=int, nargs="*", default=[8, 16])
    parse.add_argument("--steps", type=int, default=5)
    parse.add_argument("--rounds", type=int, default=3, help="turns of each plan")
    parse.add_argument("--others", type=int, default=3)
    args = parse.parse_args()
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        refuse("this takes root and /dev/net/tun")
    folder = tempfile.mkdtemp()
    wire = f"{folder}/wire"
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wire.c")
    subprocess.check_call(["cc", "-O2", "-o", wire, source])
    print("| between nodes | m | plan | v | layers | planned | measured | difference |")
    print("|---|---|---|---|---|---|---|---|")
    for name, delay, bits in LINKS:
        spaces = Namespaces(wire, delay, bits, SETTINGS, count=4, node=2)
        try:
            inside, between = (spaces.lines(args.worker, {"what": "line"}, {}, pair)[0] for pair in ([0, 1], [1, 2]))
            for micro in args.micro:
                task = dict(what="planned", profile=os.path.abspath(args.profile), batch=args.batch, micro_batches=micro,
                            inside=inside, between=between, others=args.others, rounds=args.rounds, steps=args.steps)
                for row in spaces.lines(args.worker, task, {}, [0, 1, 2, 3]):
                    off = 100 * (row["measured_ms"] / row["planned_ms"] - 1)
                    layers = " ".join(map(str, row["balance"]))
                    print(f"| {name} | {micro} | {row['schedule']} | {row['chunks']} | {layers} | {row['planned_ms']:.0f} ms "
                          f"| {row['measured_ms']:.0f} ms | {off:+.1f} % |", flush=True)
        finally:
            spaces.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
