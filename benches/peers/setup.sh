#!/bin/sh
# Creates the peers' virtual environment and prints the path of its Python.
#
# It lives in ${XDG_CACHE_HOME:-~/.cache}/gpipe-rs, shared by all clones of one user, and is complete once its
# stamp file exists. About 3 GB to download, 5 GB on disk: torch's wheel brings all of its optional imports.
set -eu

torch=2.11.0
numpy=2.2.6
deepspeed=0.19.8
torchgpipe=0.0.7

python=${PYTHON:-python3}
tag=$("$python" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
venv=${XDG_CACHE_HOME:-$HOME/.cache}/gpipe-rs/peers-$tag
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@" >&2; }

mkdir -p "${venv%/*}"
if [ ! -e "$venv/complete" ] && command -v flock >/dev/null 2>&1; then
  # If two run at once, the second waits and then finds the stamp.
  exec 9>"${venv%/*}/peers.lock"
  flock 9
fi
if [ ! -e "$venv/complete" ]; then
  echo "peers: installing into $venv" >&2
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  pip "torch==$torch" "numpy==$numpy" setuptools==65.5.0 wheel==0.48.0
  # DeepSpeed's imports; its declared dependencies are more than needed here, and it would build its CUDA
  # kernels.
  pip psutil==7.2.2 ninja==1.13.2 einops==0.8.2 hjson==3.1.0 msgpack==1.2.4 packaging==26.3 \
    py-cpuinfo==9.0.0 pydantic==2.14.3 tqdm==4.70.1
  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip --no-deps --no-build-isolation "deepspeed==$deepspeed"
  pip --no-deps --no-build-isolation "torchgpipe==$torchgpipe"
  "$venv/bin/python" -c 'import deepspeed, torch, torchgpipe' >&2
  : >"$venv/complete"
fi
echo "$venv/bin/python"
