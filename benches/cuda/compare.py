"""What the CUDA tests gave on one machine beside what they gave on another.

Both are files of `cuda-tests --json`: a list with an object for each test. Numbers are what
tests note for this comparison: losses, captures and replays, bytes.
"""

import json

# Losses with other kernels in single precision; a larger difference needs a look.
NEAR = 1e-4


def read(path):
    """The results in a file; none where it is not there."""
    try:
        return json.loads(path.read_text())
    except OSError:
        return []


def flat(value, path=""):
    """Every number of a nested list by its place."""
    if isinstance(value, list):
        for place, one in enumerate(value):
            yield from flat(one, f"{path}[{place}]")
    else:
        yield path, value


def apart(one, other):
    """How far two numbers are from each other, in words; none where they are the same."""
    if one == other:
        return None
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    if not numbers or isinstance(one, int) and isinstance(other, int):
        return f"{one} here, {other} simulated"
    relative = abs(one - other) / max(abs(other), 1e-30)
    return f"{one:.9g} here, {other:.9g} simulated ({relative:.1e})" if relative > NEAR else None


def differences(simulated, here):
    """A line for each test that went otherwise, and for each noted number that is another."""
    if not simulated:
        return ["there are no results of simulated GPUs (simulated.json)"]
    ours = {test["name"]: test for test in here}
    lines = []
    for test in simulated:
        own = ours.get(test["name"])
        if own and own["result"] == "skipped" and "for simulated devices" in own["why"]:
            continue
        if own is None or own["result"] != test["result"]:
            went = own["result"] if own else "not run"
            lines.append(f"{test['name']}: {went} here, {test['result']} simulated")
            continue
        for name, values in test["numbers"].items():
            noted = dict(flat(own["numbers"].get(name)))
            for place, value in flat(values):
                words = apart(noted.get(place), value)
                if words:
                    lines.append(f"{test['name']}, {name}{place}: {words}")
    return lines
