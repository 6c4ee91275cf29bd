#!/bin/sh
# Puts libtorch 2.11.0 where the build looks for it: `.libtorch`, a link into a
# virtual environment that all clones of one user share.
#
#   TORCH=cpu    the small install: no CUDA libraries, `import torch` does not work
#   TORCH=full   everything the wheel asks for: CUDA, cuDNN, NCCL, Python
#
# Without TORCH: full if an NVIDIA driver is found, otherwise cpu. The environment lives in
# ${XDG_CACHE_HOME:-~/.cache}/gpipe-rs and is complete once its stamp file exists; an interrupted
# download starts over. Downloads must have the checksums of wheels/*.txt, which lock.py makes.
set -eu

version=2.11.0
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:?HOME is not set: cannot place the libtorch cache}/.cache}/gpipe-rs

flavour=${TORCH:-}
if [ -z "$flavour" ]; then
  if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null 2>&1; then
    flavour=full
  else
    flavour=cpu
  fi
fi
case $flavour in cpu | full) ;; *)
  echo "error: TORCH=$flavour: use TORCH=cpu or TORCH=full" >&2
  exit 2 ;;
esac

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
  echo "error: python3 not found: libtorch is taken from Python's torch wheel; install Python 3.10 or newer, or set PYTHON" >&2
  exit 1
fi
tag=$("$python" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
venv=$cache/torch-$version-$flavour-$tag
stamp=$venv/complete

# `full` installs the whole list, all that the wheel requires. libtorch_cpu.so of the Linux x86-64
# wheel links against the two NVIDIA packages even without a GPU; other platforms' wheels stand
# alone.
wheels=$here/wheels/$(uname -s)-$(uname -m).txt
wanted=.
if [ "$flavour" = cpu ] && [ "$(uname -sm)" = "Linux x86_64" ]; then
  wanted='^(torch|nvidia-cuda-runtime|nvidia-cuda-cupti)=='
fi

install() {
  case $tag in py3.10 | py3.11 | py3.12 | py3.13 | py3.14) ;; *)
    echo "error: libtorch $version is taken from wheels for Python 3.10 to 3.14, and $python is ${tag#py}: set PYTHON to another" >&2
    exit 1 ;;
  esac
  if [ ! -e "$wheels" ]; then
    echo "error: there are no wheels of libtorch $version for $(uname -sm): point LIBTORCH at one that you have built" >&2
    exit 1
  fi
  echo "libtorch $version ($flavour): installing into $venv" >&2
  rm -rf "$venv"
  "$python" -m venv "$venv"
  grep -E "$wanted" "$wheels" >"$venv/wheels.txt"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    --no-deps --only-binary=:all: --require-hashes --requirement "$venv/wheels.txt"
  : >"$stamp"
}

# Programs in the cache are run: others must not be able to put them there.
mkdir -p "$cache"
owner=$(ls -ldn "$cache" | awk '{print $3}')
if { [ "$owner" != "$(id -u)" ] && [ "$owner" != 0 ]; } || [ -n "$(find "$cache" -prune -perm -002)" ]; then
  echo "error: $cache is another user's, or anybody may write to it, and programs in it are run: give your own folder in XDG_CACHE_HOME, or mend its owner and mode" >&2
  exit 1
fi
if [ ! -e "$stamp" ]; then
  if command -v flock >/dev/null 2>&1; then
    # Two clones set up at once: the second waits, then finds the stamp.
    exec 9>"$cache/lock"
    flock 9
  fi
  [ -e "$stamp" ] || install
fi

torch=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/torch
if [ "$(readlink "$root/.libtorch" 2>/dev/null || true)" != "$torch" ]; then
  rm -f "$root/.libtorch"
  ln -s "$torch" "$root/.libtorch"
fi
