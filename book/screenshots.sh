#!/bin/sh
# Makes the screenshots, each in light and dark: for the book the report about a committed profile, and the
# page of a simulation, whole and zoomed; for the README the report of a training run, if TRAINING names one.
# Needs a Chromium and pngquant; no libtorch, since nothing is measured.
#
#   sh book/screenshots.sh             from anywhere; `make screenshots` does it
#   GPIPE=target/release/gpipe-rs sh book/screenshots.sh
#   gpipe-rs train --report report.html && TRAINING=report.html sh book/screenshots.sh
set -eu
training=${TRAINING:+$(realpath "$TRAINING")}
cd "$(dirname "$0")/.."

gpipe() {
  if [ -n "${GPIPE:-}" ]; then "$GPIPE" "$@"
  # In a separate folder, so that the command with libtorch stays.
  else cargo run --quiet --locked --no-default-features --features decide --target-dir target/decide -- "$@"; fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. book/browser.sh

gpipe plan --profile examples/data/profiles/gpt.json --devices 4 --batch 32 --micro 8 --chunks 1 \
  --memory 256MiB --link 10GB/s,20us --report "$work/report.html" >/dev/null
gpipe simulate --schedule zbv --devices 8 --micro 32 --activation-bytes 512MiB --format html \
  -o "$work/simulation.html" >/dev/null

# part NAME PAGE HEIGHT HIDDEN [SCRIPT]: the page without the elements that the selector HIDDEN matches, after
# running the script.
part() {
  sed -e "s|</style>|$4{display:none!important}</style>|" \
    -e "s|</body>|<script>${5:-}</script></body>|" "$work/$2.html" >"$work/part.html"
  pictures "$work/part.html" "$1" "$3"
}

if [ -n "$training" ]; then
  cp "$training" "$work/training.html"
  part training training 725 'nav,.hint,.zoom,#detail,#keys,#causes,#devices,#memory,footer'
fi
part profile report 1465 '#timeline,#memory,#schedules,#doubts,footer'
part profile-plan report 1670 'header,nav,.facts,.say,.cap,.peaks,main>.hint,#layers,#doubts,#detail,#keys,.zoom,#timeline .scroll,#memory .scroll,footer'
part simulation simulation 2135 '#detail,#memory .scroll,footer'
# Zoomed eight times, at the end of the warm-up, with an action selected.
part zoomed simulation 640 'header,nav,.facts,.say,#memory,#timeline .scroll,footer' '\
  var plus=document.querySelector(".zoom button"),chart=document.getElementById("chart");\
  plus.click();plus.click();plus.click();chart.scrollLeft=420;\
  document.querySelectorAll("svg g rect")[18].dispatchEvent(new MouseEvent("mousemove",{bubbles:true}))'
