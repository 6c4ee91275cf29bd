#!/usr/bin/env python3
"""Runs the CUDA tests and benchmarks that lie beside this file.

    python3 cuda-check/check.py [--out FOLDER] [--simulated]

Needs an NVIDIA GPU, its driver, and Python with PyTorch 2.11 for CUDA; neither cargo nor
network. Writes `check.json` and `check.txt`, into the folder it is called from unless
`--out` names another. Exits with 0 if all went well, 1 if something failed, 3 if there is no
GPU: nothing was shown then.

What the tests gave is compared with what they gave on simulated GPUs when the folder was
packed (`simulated.json`); what is different is printed, and is no failure. With `--simulated`
the tests run on simulated GPUs here as well, on any machine, and nothing is measured: that
tries this script.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import compare

HERE = pathlib.Path(__file__).resolve().parent
WANTED = "2.11.0"
SIMULATED = {"GPIPE_SIMULATE_GPUS": "4"}
TURNS = 3
IN_TURNS = ["gpt2_one_stage", "gpt2_four_micro_batches"]
SKIPPED = {"status": 0, "output": "not run on simulated GPUs"}


def torch_folder():
    """Where PyTorch is, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        sys.exit("error: this Python has no PyTorch: `pip install torch==2.11.0`, or run this "
                 "with the Python that has it")
    return pathlib.Path(found.origin).parent


def torch_version(folder):
    for line in (folder / "version.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split("'")[1]
    return "unknown"


def environment(folder):
    """Has binaries find libtorch, and libtorch NVIDIA's libraries."""
    libraries = [folder / "lib", *sorted(folder.parent.glob("nvidia/*/lib"))]
    before = os.environ.get("LD_LIBRARY_PATH")
    paths = [str(path) for path in libraries] + ([before] if before else [])
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}


def run(command, env, limit):
    """What a command printed, and how it ended."""
    try:
        done = subprocess.run([str(part) for part in command], env=env, timeout=limit,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return {"status": done.returncode, "output": done.stdout}
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        output = output if isinstance(output, str) else output.decode(errors="replace")
        return {"status": None, "output": output + f"\nstopped after {limit} s"}
    except OSError as error:
        return {"status": None, "output": str(error)}


def with_json(name, env, limit):
    """A command that writes a file of JSON as it goes; what is in it, and the run."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "out.json"
        done = run([HERE / name, "--json", path], env, limit)
        try:
            return json.loads(path.read_text()), done
        except (OSError, ValueError):
            return None, done


def last_object(text):
    """The JSON object that the last line of an output is."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return None


def described(env):
    done = run([HERE / "gpipe-rs", "env", "--json"], env, 120)
    return last_object(done["output"]) or {"cuda_devices": 0, "cuda_missing": done["output"].strip()}


def number(value, *path):
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, (int, float)) else None


def in_turns(env):
    """Steps here and in PyTorch, in turns: a machine that is slower for a while is so for both."""
    turns, output, failed = [], "", False
    for _ in range(TURNS):
        turn = {}
        for name in IN_TURNS:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "out.json"
                done = run([HERE / "cuda-benches", "--one", name, "--json", path], env, 600)
                turn[name] = json.loads(path.read_text()) if path.exists() else None
            output, failed = output + done["output"], failed or done["status"] != 0
        done = run([sys.executable, HERE / "eager.py"], env, 600)
        turn["eager"] = last_object(done["output"])
        output, failed = output + done["output"], failed or done["status"] != 0
        turns.append(turn)
    return turns, {"status": 1 if failed else 0, "output": output}


def median_of(turns, *path):
    """The median of what the turns measured; none where one of them has none."""
    found = [number(turn, *path, "median_ms") for turn in turns]
    return statistics.median(found) if found and None not in found else None


def planned(env):
    """A profile on the GPU, the plan made of it, and what a run by that plan takes."""
    model = ["--model", "gpt", "--layers", 12, "--d-model", 768, "--heads", 12, "--context", 1024,
             "--vocab", 50257, "--dropout", 0, "--data", "synthetic", "--precision", "bf16",
             "--batch", 8]
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        profile = [HERE / "gpipe-rs", "profile", *model, "--devices", "cuda:0", "--plan", plan]
        train = [HERE / "gpipe-rs", "train", *model, "--plan", plan, "--steps", 40, "--quiet",
                 "--json", "--out", pathlib.Path(folder) / "run"]
        profiled = run(profile, env, 600)
        trained = run(train, env, 600)
        output = profiled["output"] + trained["output"]
        return last_object(trained["output"]), {"status": trained["status"], "output": output}


def apart(one, other):
    """The larger of two numbers over the smaller."""
    return max(one, other) / min(one, other) if one and other else None


def judged(benches, turns, trained):
    """Each claim about speed: what it is, what was measured, whether it holds."""
    own, theirs = median_of(turns, "gpt2_one_stage"), median_of(turns, "eager")
    ratio = own / theirs if own and theirs else None
    four = median_of(turns, "gpt2_four_micro_batches")
    accumulated = median_of(turns, "eager", "four_micro_batches")
    predicted = apart(number(trained, "makespan_ms_median"), number(trained, "planned_ms"))
    copies = number(benches, "copies_behind_computation", "step_over_longer")
    two = number(benches, "gpt2_two_stages_one_card", "ratio")
    peak = number(benches, "gpt2_xl_under_a_limit", "peak_bytes")
    limit = number(benches, "gpt2_xl_under_a_limit", "limit_bytes")
    trained = number(benches, "gpt2_xl_under_a_limit", "step", "median_ms")
    graphs = number(benches, "cuda_graphs", "ratio")
    waits = number(benches, "host_share", "host_waits_in_a_step")
    claims = [
        ("gpt2, bf16, 1 stage: step over PyTorch eager's", ratio, 1.0),
        ("the same in 4 micro-batches",
         four / accumulated if four and accumulated else None, 1.0),
        ("a step by a plan: measured and predicted, the larger over the smaller", predicted, 1.10),
        ("gpt2, bf16, 2 stages on one card: step over that of 1", two, 1.05),
        ("copies of 64 MiB: step over the longer of compute and copy", copies, 1.10),
        ("waits of the host inside of a step", waits, 0),
        ("small GPT, 2 stages, CUDA graphs: step over that without", graphs, 1.0),
        ("gpt2-xl under its limit: peak over the limit",
         peak / limit if peak and limit and trained else None, 1.0),
    ]
    return [{"claim": claim, "measured": value, "at_most": most,
             "holds": None if value is None else value <= most}
            for claim, value, most in claims]


def summary(report):
    lines = [f"gpipe-rs CUDA check, {report['date']}, commit {report['commit']}",
             f"host      {report['host']}, Python {report['python']}, PyTorch {report['torch']}"]
    if report["simulated"]:
        lines.append("devices   simulated: nothing is shown of a GPU")
    for device in report["environment"].get("cuda", []):
        lines.append(f"{device['device']}    {device['name']}, {device['memory'] / 2**30:.1f} GiB")
    missing = report["environment"].get("cuda_missing")
    if missing:
        lines += ["", "There is no GPU to check: every CUDA test and benchmark was skipped.",
                  f"Reason: {missing}", "Here that means: run this script with a Python whose PyTorch is the CUDA build, on a "
                  "machine with an NVIDIA driver (`nvidia-smi` shows it)."]
    tests = report["tests"] or []
    counts = {word: sum(test["result"] == word for test in tests)
              for word in ("passed", "failed", "skipped")}
    lines += ["", "tests     " + ", ".join(f"{count} {word}" for word, count in counts.items())]
    for test in tests:
        if test["result"] == "failed":
            lines.append(f"  failed: {test['name']}: {(test['why'].splitlines() or [''])[0]}")
    if report["runs"]["tests"]["status"] not in (0, 1):
        lines.append("  the tests did not come to their end; their output is in check.json")
    for name, value in (report["benches"] or {}).items():
        if isinstance(value, dict) and "error" in value:
            lines.append(f"  benchmark {name} ended early: {(value['error'].splitlines() or [''])[0]}")
    lines += ["", "against simulated GPUs (numbers of other kernels may differ in their last digits)"]
    lines += [f"  {line}" for line in report["differences"]] or ["  no difference"]
    if report["simulated"]:
        return "\n".join(lines) + "\n"
    lines += ["", "claims"]
    for claim in report["claims"]:
        measured = claim["measured"]
        verdict = {None: "not measured", True: "holds", False: "DOES NOT HOLD"}[claim["holds"]]
        text = "" if measured is None else f" {measured:.3f} (at most {claim['at_most']})"
        lines.append(f"  {claim['claim']}:{text} {verdict}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=".", help="where to write check.json and check.txt")
    parser.add_argument("--simulated", action="store_true",
                        help="run the tests on simulated GPUs, and no benchmark")
    arguments = parser.parse_args()
    out, simulated = pathlib.Path(arguments.out), arguments.simulated
    folder = torch_folder()
    version = torch_version(folder)
    if version.split("+")[0] != WANTED:
        sys.exit(f"error: PyTorch {WANTED} is needed, this Python has {version}")
    env = {**environment(folder), **(SIMULATED if simulated else {})}
    machine = described(env)
    print("running the CUDA tests", flush=True)
    tests, tests_run = with_json("cuda-tests", env, 7200)
    benches, benches_run, turns, turns_run = None, SKIPPED, [], SKIPPED
    trained, trained_run = None, SKIPPED
    if not simulated:
        print("running the CUDA benchmarks", flush=True)
        benches, benches_run = with_json("cuda-benches", env, 7200)
        print("running the same model here and in PyTorch, in turns", flush=True)
        turns, turns_run = in_turns(env)
        print("running a plan of this machine", flush=True)
        trained, trained_run = planned(env)
    commit = HERE / "commit.txt"
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit.read_text().strip() if commit.exists() else "unknown",
        "host": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version,
        "environment": machine,
        "simulated": simulated,
        "tests": tests,
        "differences": compare.differences(compare.read(HERE / "simulated.json"), tests or []),
        "benches": benches,
        "beside_pytorch": turns,
        "by_plan": trained,
        "claims": judged(benches or {}, turns, trained or {}),
        "runs": {"tests": tests_run, "benches": benches_run, "beside_pytorch": turns_run,
                 "by_plan": trained_run},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "check.json").write_text(json.dumps(report, indent=1) + "\n")
    text = summary(report)
    (out / "check.txt").write_text(text)
    print("\n" + text)
    if not machine.get("cuda_devices"):
        sys.exit(3)
    failed = any(own["status"] != 0 for own in (tests_run, benches_run, turns_run, trained_run))
    failed |= any(isinstance(bench, dict) and "error" in bench for bench in (benches or {}).values())
    wrong = any(claim["holds"] is False for claim in report["claims"])
    missing = tests is None or benches is None and not simulated
    sys.exit(1 if failed or wrong or missing else 0)


if __name__ == "__main__":
    main()
