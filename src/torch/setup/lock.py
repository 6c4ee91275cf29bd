"""Writes the lists of wheels that libtorch.sh installs, each wheel with its checksum.

    python3 src/torch/setup/lock.py [FOLDER]

It asks pip what it would install for each system and each Python, and downloads no wheel.
With FOLDER, pip's reports are kept there, and those that are there are not asked for again.
Run it anew when the version of libtorch changes.
"""

import json
import os
import subprocess
import sys
import tempfile

TORCH = "torch==2.11.0"
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
# Packages that torch asks for on Linux only: pip looks at markers with the eyes of the
# machine that it runs on.
LINUX = ("cuda-", "nvidia-", "triton")
HERE = os.path.dirname(os.path.abspath(__file__))


def linux(machine):
    names = ["manylinux_2_%d_%s" % (minor, machine) for minor in range(34, 4, -1)]
    return names + ["%s_%s" % (old, machine) for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]


def macos(machine):
    return ["macosx_%d_0_%s" % (major, machine) for major in range(26, 10, -1)] + ["macosx_10_9_universal2"]


SYSTEMS = {
    "Linux-x86_64": linux("x86_64"),
    "Linux-aarch64": linux("aarch64"),
    "Darwin-arm64": macos("arm64"),
}


def report(folder, system, python, packages, options):
    """What pip would install: pairs of `name==version` and a checksum."""
    path = os.path.join(folder, "%s-%s.json" % (system, python))
    if not os.path.exists(path):
        print("%s, Python %s" % (system, python), file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        platforms = [word for name in SYSTEMS[system] for word in ("--platform", name)]
        subprocess.run(
            pip + ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--report", path + ".new"]
            + ["--target", os.path.join(folder, "none"), "--python-version", python]
            + platforms + options + packages,
            check=True,
        )
        os.replace(path + ".new", path)
    with open(path) as file:
        wheels = json.load(file)["install"]
    for wheel in wheels:
        name = wheel["metadata"]["name"].lower().replace("_", "-")
        checksum = wheel["download_info"]["archive_info"]["hashes"]["sha256"]
        yield "%s==%s" % (name, wheel["metadata"]["version"]), checksum


def lines(system, wheels):
    """One line a version: for which Pythons it is, where not for all, and its checksums."""
    yield "# torch's wheel and all that it asks for on %s. Made by ../lock.py." % system
    names = sorted({name for found in wheels.values() for name, _ in found})
    for name in names:
        pythons = [python for python in PYTHONS if name in dict(wheels[python])]
        checksums = sorted({sum for found in wheels.values() for own, sum in found if own == name})
        only = "" if pythons == PYTHONS else ' ; python_version in "%s"' % " ".join(pythons)
        yield name + only + "".join(" --hash=sha256:" + checksum for checksum in checksums)


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[1] if len(sys.argv) > 1 else temporary
        found = {}
        for system in SYSTEMS:
            found[system] = {}
            for python in PYTHONS:
                packages, options = [TORCH], []
                if system.startswith("Darwin"):
                    also = {name for name, _ in found["Linux-x86_64"][python]}
                    also = sorted(name for name in also if not name.startswith(LINUX + (TORCH,)))
                    packages, options = [TORCH] + also, ["--no-deps"]
                found[system][python] = list(report(folder, system, python, packages, options))
            path = os.path.join(HERE, "wheels", system + ".txt")
            with open(path, "w") as file:
                file.writelines(line + "\n" for line in lines(system, found[system]))


if __name__ == "__main__":
    main()
