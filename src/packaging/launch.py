"""`gpipe-rs` as pip installs it: finds PyTorch's libraries, then becomes the command.

Where there is no PyTorch, verbs that compute on paper alone are those of a second, smaller command
that needs none.

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
# First words of commands that need libtorch. All others, including misspelt ones, go to the command that does
# not.
NEED_IT = {"--simulate-gpus", "completions", "env", "eval", "export", "generate", "help", "launch",
           "man", "models", "predict", "profile", "train"}


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


def without(what, here):
    """Becomes the command that needs no PyTorch, where it does what is asked for."""
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    smaller = here / "gpipe-rs-on-paper"
    if first.split("=")[0] not in NEED_IT and smaller.exists():
        if first.startswith("-") or not first:
            others = ", ".join(sorted(own for own in NEED_IT if not own.startswith("-")))
            print(f"note: these verbs need no PyTorch; {others} need PyTorch {WANTED}, and {what}",
                  file=sys.stderr)
        os.execv(smaller, [called(), *sys.argv[1:]])
    sys.exit(f"error: PyTorch {WANTED} is needed, and {what}\n"
             f"hint: {sys.executable} -m pip install 'torch=={WANTED}.*'")


def called():
    """The first word, which messages such as "go on with: gpipe-rs train --resume" repeat: the name
    alone where a shell finds this script by it."""
    own = sys.argv[0]
    name = os.path.basename(own)
    found = shutil.which(name)
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        return name
    return own


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = torch()
    if folder is None:
        without(f"this Python has none: {sys.executable}", here)
    has = version(folder)
    if not has.startswith(f"{WANTED}."):
        without(f"{folder} is PyTorch {has}", here)
    if folder.resolve() != (here.parent / "torch").resolve():
        others = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder / "lib"), others]))
    os.execv(here / "gpipe-rs", [called(), *sys.argv[1:]])


if __name__ == "__main__":
    main()
