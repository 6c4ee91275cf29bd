"""Reads a run's event files with TensorBoard and compares them with its metrics.jsonl.

    python3 tests/cli/tensorboard/check.py RUN

First with the reader that TensorBoard has in Python, then through a TensorBoard that is
started for it and asked by HTTP, as its page in the browser does.
"""

import json
import math
import pathlib
import struct
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from tensorboard import program
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tb_logging

SECONDS = 60  # That a TensorBoard may take to start and to read the files.


def single(number):
    """A number as single precision has it, which is what event files hold."""
    if number is None:  # What JSON has no word for.
        return math.nan
    return struct.unpack("<f", struct.pack("<f", number))[0]


def expected(run):
    """By name: steps and values, as the lines of JSON have them."""
    series = {}
    groups = {
        "train": ["loss", "lr", "grad_norm", "loss_scale", "skipped"],
        "speed": ["samples_per_s", "tokens_per_s", "step_ms", "makespan_ms", "input_wait", "mfu", "host_share"],
        "pipeline": ["bubble_measured", "bubble_predicted"],
        "input": ["loader_cores", "training_cores", "batches_ready"],
    }
    for line in [json.loads(line) for line in open(run / "metrics.jsonl")]:
        values = {f"{group}/{name}": line[name] for group in groups for name in groups[group] if name in line}
        for device, peak in enumerate(line.get("peak_bytes", [])):
            values[f"memory/peak_bytes_device_{device}"] = peak
        for kind in ["ms", "cpu_ms"]:
            for phase, value in zip(["read", "decode", "map", "stack", "copy"], line.get(f"input_{kind}", [])):
                values[f"input/{phase}_{kind}"] = value
        if "input_limit" in line:
            kinds = ["compute", "uneven", "contended", "CPU", "I/O"]
            values["input/limit"] = [line["input_limit"].startswith(kind) for kind in kinds].index(True)
        for tag, value in values.items():
            series.setdefault(tag, []).append((line["step"], single(value)))
    return series


def accumulated(run):
    """By name: steps and values, as TensorBoard's reader in Python has them."""
    reader = event_accumulator.EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags}


class Served:
    """What a TensorBoard answers about a run."""

    def __init__(self, run):
        # A separate folder, so that only this run is served.
        self.folder = tempfile.TemporaryDirectory()
        (pathlib.Path(self.folder.name) / "run").symlink_to(run.resolve(), target_is_directory=True)
        server = program.TensorBoard()
        tb_logging.get_logger().setLevel("ERROR")
        # All samples, without subsampling; port 0 is any free one.
        arguments = ["--logdir", self.folder.name, "--port", "0", "--samples_per_plugin", "scalars=1000000"]
        server.configure(argv=[None, *arguments])
        self.address = server.launch()

    def ask(self, what, **arguments):
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{self.address}data/plugin/scalars/{what}?{query}", timeout=SECONDS) as answer:
            return json.load(answer)

    def series(self):
        """By name: steps and values, as far as they have been read."""
        found = {}
        for tag in self.ask("tags").get("run", {}):
            samples = self.ask("scalars", run="run", tag=tag)
            found[tag] = [(step, math.nan if value == "NaN" else value) for _, step, value in samples]
        return found


def differences(found, wanted):
    for tag in sorted(found.keys() | wanted.keys()):
        have, want = found.get(tag, []), wanted.get(tag, [])
        if repr(have) != repr(want):  # As text NaN is NaN.
            yield f"{tag}: read {have[:20]}, but metrics.jsonl has {want[:20]}"


def main():
    run = pathlib.Path(sys.argv[1])
    wanted = expected(run)
    if not wanted:
        sys.exit(f"{run}: metrics.jsonl has no steps")
    wrong = [f"the reader in Python: {one}" for one in differences(accumulated(run), wanted)]
    served, end = Served(run), time.monotonic() + SECONDS
    while unlike := list(differences(served.series(), wanted)):
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    wrong += [f"the server: {one}" for one in unlike]
    if wrong:
        sys.exit("\n".join(wrong))
    files = len(list(run.glob("events.out.tfevents.*")))
    steps = len(wanted["train/loss"])
    print(f"TensorBoard reads {len(wanted)} scalars of {steps} steps from {files} event file(s) as they are in metrics.jsonl")


if __name__ == "__main__":
    main()
