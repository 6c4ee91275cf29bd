#!/bin/sh
# Makes the pictures of the book's page "Profiling and planning": the report about a committed
# profile, in light and dark. Needs a Chromium; no libtorch, since nothing is measured.
#
#   sh book/screenshots.sh             from anywhere
#   GPIPE=target/release/gpipe-rs sh book/screenshots.sh
set -eu
cd "$(dirname "$0")/.."

gpipe() {
  if [ -n "${GPIPE:-}" ]; then "$GPIPE" "$@"
  else cargo run --quiet --locked --no-default-features -- "$@"; fi
}

browser=
for name in ${BROWSER:-} chromium chromium-browser google-chrome; do
  if "$name" --version >/dev/null 2>&1; then browser=$name; break; fi
done
if [ -z "$browser" ]; then
  echo "there is no browser here: install chromium, or name one with BROWSER=..." >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
images=book/src/images
mkdir -p "$images"

gpipe plan --profile examples/data/profiles/gpt.json --devices 4 --batch 32 --micro 8 --chunks 1 \
  --memory 256MiB --link 10GB/s,20us --report "$work/report.html" >/dev/null

# part NAME HIDDEN HEIGHT: the report without what the selector HIDDEN names.
part() {
  sed "s|</style>|$2{display:none!important}</style>|" "$work/report.html" >"$work/$1.html"
  for scheme in light:1 dark:0; do
    picture=$images/$1-${scheme%:*}.png
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
      --disable-background-networking --user-data-dir="$work/profile" \
      --blink-settings=preferredColorScheme="${scheme#*:}" --window-size="1200,$3" \
      --screenshot="$picture" "file://$work/$1.html" >/dev/null 2>&1
    echo "$picture: $(wc -c <"$picture") bytes"
  done
}

part profile 'nav,#timeline,#memory,#schedules,#doubts,footer' 1420
part profile-plan 'header,nav,.facts,.say,.cap,.peaks,main>.hint,#layers,#doubts,#detail,#timeline .scroll,#memory .scroll,footer' 1670
