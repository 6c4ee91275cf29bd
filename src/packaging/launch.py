"""`gpipe-rs` as pip installs it: finds PyTorch's libraries, then becomes the command.

The command looks for libtorch in `torch/lib` beside its own package. A PyTorch in another place
that this Python would import (a user's folder, the system's packages, what a `.pth` file names) is
named to the loader here. PyTorch itself is not imported: that takes seconds.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import sys

# The minor version whose libtorch the command was linked against.
WANTED = "2.11"


def torch():
    """The folder of the PyTorch that this Python would import; None where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return pathlib.Path(spec.origin).parent


def version(folder):
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        return "of no known version"
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    return found.group(1) if found else "of no known version"


def refused(what):
    sys.exit(f"error: PyTorch {WANTED} is needed, and {what}\n"
             f"hint: {sys.executable} -m pip install 'torch=={WANTED}.*'")


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = torch()
    if folder is None:
        refused(f"this Python has none: {sys.executable}")
    has = version(folder)
    if not has.startswith(f"{WANTED}."):
        refused(f"{folder} is PyTorch {has}")
    if folder.resolve() != (here.parent / "torch").resolve():
        others = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder / "lib"), others]))
    # The first word is what messages such as "go on with: gpipe-rs train --resume" repeat: the
    # name alone where a shell finds this script by it.
    called = sys.argv[0]
    name = os.path.basename(called)
    found = shutil.which(name)
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        called = name
    os.execv(here / "gpipe-rs", [called, *sys.argv[1:]])


if __name__ == "__main__":
    main()
