#!/bin/sh
# Rebuilds the playground's module: book/src/playground/module.js, the partitioner as WebAssembly in base64,
# so that a page opened as a file has it, too.
#
#   sh book/playground/build.sh        from anywhere; `make playground` does it
#
# Needs the target wasm32-unknown-unknown, which rustup fetches.
set -eu
cd "$(dirname "$0")/../.."

target=wasm32-unknown-unknown
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
  if ! rustup target add "$target"; then
    echo "there is no standard library for $target here: 'rustup target add $target' fetches it" >&2
    exit 1
  fi
fi

# Keeps paths of this machine out of the module.
home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$home=/cargo --remap-path-prefix=$PWD=/gpipe-rs" \
  cargo build --locked -p gpipe-playground --lib --profile playground --target "$target"

built=${CARGO_TARGET_DIR:-target}/$target/playground/gpipe_playground.wasm
page=book/src/playground/module.js
{
  echo "// The partitioner as WebAssembly, in base64. Made by \`make playground\`, do not edit."
  printf "var GPIPE_MODULE = '%s';\n" "$(base64 -w 0 "$built")"
} >"$page"
echo "$page: $(wc -c <"$page") bytes, the module $(wc -c <"$built")"
