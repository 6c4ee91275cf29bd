"""What joining a world costs, by the number of its processes; all on this host.

    scale.py WORKER [--ranks 2,4,8,16,32]

For each number: how long until all have met and until all are connected, connections and memory
of a process, and what goes over the connections to the store, as the system counts it: while the
processes come together, and each second that they are there and do nothing.
"""
import argparse
import json
import os
import re
import statistics
import shutil
import subprocess
import sys
import time

PORT = 29700
# Set to the namespace that this process runs in.
NAMESPACE = "GPIPE_SCALE_NAMESPACE"


def store_traffic(port):
    """Connections at the store's side, requests, bytes in and out. A request is one segment."""
    said = subprocess.run(
        ["ss", "-tinH", "state", "established", f"( sport = :{port} )"], capture_output=True, text=True, check=True
    ).stdout
    total = lambda word: sum(int(number) for number in re.findall(rf"{word}:(\d+)", said))
    connections = sum(1 for line in said.splitlines() if line and not line[0].isspace())
    return connections, total("data_segs_in"), total("bytes_received"), total("bytes_sent")


def in_namespace():
    """This again in a network namespace whose addresses have names: libtorch looks up each, and waits
    five seconds where no name server answers."""
    name = f"gpipe-scale-{os.getpid()}"
    folder = f"/etc/netns/{name}"
    subprocess.check_call(["ip", "netns", "add", name])
    try:
        os.makedirs(folder)
        with open(f"{folder}/hosts", "w") as hosts:
            hosts.write(f"127.0.0.1 localhost {os.uname().nodename}\n::1 localhost\n::ffff:127.0.0.1 localhost\n")
        inside = ["ip", "netns", "exec", name]
        subprocess.check_call([*inside, "ip", "link", "set", "lo", "up"])
        return subprocess.call([*inside, sys.executable, *sys.argv], env={**os.environ, NAMESPACE: name})
    finally:
        subprocess.call(["ip", "netns", "del", name])
        shutil.rmtree(folder, ignore_errors=True)


def proportional(process):
    """Memory of a process in MB, what it shares with others divided among them."""
    with open(f"/proc/{process.pid}/smaps_rollup") as file:
        return int(re.search(r"^Pss:\s+(\d+)", file.read(), re.M)[1]) / 1024


def run(worker, size, port, environment):
    def start(rank):
        words = dict(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        words = {key: str(value) for key, value in words.items()}
        return subprocess.Popen(
            [worker, json.dumps({"what": "join"})],
            env={**os.environ, "OMP_NUM_THREADS": "1", **words, **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    all = [start(rank) for rank in range(size)]
    said = [json.loads(own.stdout.readline()) for own in all]
    before, begin = store_traffic(port), time.time()
    time.sleep(4)
    after, passed = store_traffic(port), time.time() - begin
    memory = statistics.median(proportional(own) for own in all)
    for own in all:
        own.stdin.close()
    ends = [own.wait(60) for own in all]
    assert not any(ends), ends
    each = (after[1] - before[1]) / passed / size
    median = lambda key: statistics.median(own[key] for own in said)
    return dict(
        ranks=size, group_ms=median("group_ms"), met_ms=median("met_ms"), files=median("files"), pss_mb=memory, store_connections=before[0],
        requests=before[1], kb_in=before[2] / 1024, kb_out=before[3] / 1024, requests_a_second_each=each,
    )


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("worker")
    parse.add_argument("--ranks", default="2,4,8,16,32")
    args = parse.parse_args()
    if os.geteuid() == 0 and NAMESPACE not in os.environ:
        sys.exit(in_namespace())
    port = PORT
    print("| connections | ranks | meeting | a group | files of a process | memory of a process | connections to the store | requests until all are there | KiB to the store | KiB from it | requests a second and process, at rest |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, environment in (("all", {}), ("lazy", {"TORCH_GLOO_LAZY_INIT": "1"})):
        for size in map(int, args.ranks.split(",")):
            port += 1
            own = run(args.worker, size, port, environment)
            print(
                f"| {name} | {size} | {own['met_ms']:.0f} ms | {own['group_ms']:.0f} ms | {own['files']:.0f} | {own['pss_mb']:.0f} MB | {own['store_connections']} "
                f"| {own['requests']} | {own['kb_in']:.0f} | {own['kb_out']:.0f} | {own['requests_a_second_each']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
