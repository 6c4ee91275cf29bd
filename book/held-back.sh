#!/bin/sh
# Makes the pictures of the book's page "Is loading the limit?": the report of an input-bound training, in
# light and dark. Trains for less than a minute; needs a Chromium, pngquant and the full command.
#
#   sh book/held-back.sh             from anywhere
#   GPIPE=target/release/gpipe-rs sh book/held-back.sh
set -eu
cd "$(dirname "$0")/.."

gpipe() {
  if [ -n "${GPIPE:-}" ]; then "$GPIPE" "$@"
  else cargo run --quiet --locked --release -- "$@"; fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. book/browser.sh

# Photographs of two classes, large compared with the model's input: 216 MB, removed when the script ends.
python3 - "$work/photographs" <<'PYTHON'
import os, random, struct, sys, zlib

def picture(path, side):
    rows = b"".join(b"\1" + random.randbytes(3 * side) for _ in range(side))
    part = lambda kind, own: struct.pack(">I", len(own)) + kind + own + struct.pack(">I", zlib.crc32(kind + own))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    with open(path, "wb") as out:
        out.write(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows, 1)) + part(b"IEND", b""))

random.seed(7)
for kind in ("cat", "dog"):
    os.makedirs(os.path.join(sys.argv[1], kind))
    for number in range(4):
        picture(os.path.join(sys.argv[1], kind, "%d.png" % number), 3000)
PYTHON

# train NAME FLAGS: a training's report.
train() {
  name=$1
  shift
  gpipe train --model resnet50 --image 32 --data "$work/photographs" --held-out 0 --batch 8 --micro 2 --devices cpu \
    --steps 24 --quiet --out "$work/$name" --report "$work/$name.html" "$@"
}

# part NAME HEIGHT: the report's text.
part() {
  sed "s|</style>|nav,.legend,.scroll,main>section~section,footer{display:none!important}</style>|" \
    "$work/$1.html" >"$work/$1-part.html"
  pictures "$work/$1-part.html" "held-back-$1" "$2"
}

train decode --workers 1
part decode 395
