#!/bin/sh
# Builds the simulated device target/simulated-cuda/libgpipe_simulated_cuda.so against the libtorch
# of this checkout. Does nothing if nothing has changed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
torch=${LIBTORCH:-.libtorch}
case $torch in /*) ;; *) torch=$root/$torch ;; esac
out=${CARGO_TARGET_DIR:-$root/target}/simulated-cuda
mkdir -p "$out/objects"
exec make -s -C "$here" -j"$(nproc)" TORCH="$torch" OUT="$out"
