#!/bin/sh
# Creates TensorFlow's virtual environment and prints the paths of two Pythons: its own, and that of
# benches/peers, which has PyTorch. They are separate because each library would slow the other down.
#
# It lives in ${XDG_CACHE_HOME:-~/.cache}/gpipe-rs, shared by all clones of one user, and is complete once its
# stamp file exists. About 300 MB to download, 1.5 GB on disk.
set -eu

tensorflow=2.21.0

here=$(dirname "$0")
python=${PYTHON:-python3}
tag=$("$python" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
venv=${XDG_CACHE_HOME:-$HOME/.cache}/gpipe-rs/peers-input-$tag

mkdir -p "${venv%/*}"
if [ ! -e "$venv/complete" ] && command -v flock >/dev/null 2>&1; then
  # If two run at once, the second waits and then finds the stamp.
  exec 9>"${venv%/*}/peers-input.lock"
  flock 9
fi
if [ ! -e "$venv/complete" ]; then
  echo "peers-input: installing into $venv" >&2
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    "tensorflow-cpu==$tensorflow" >&2
  TF_CPP_MIN_LOG_LEVEL=3 "$venv/bin/python" -c 'import tensorflow' >&2
  : >"$venv/complete"
fi
echo "$venv/bin/python $(sh "$here/../peers/setup.sh")"
