#!/bin/sh
# Walks through the first steps of a new user: clones HEAD into a new folder, with an empty home and a minimal
# environment, and tries every way to use the project. Prints the time and the result of each step; exits with
# 1 if any has failed.
#
#   sh src/packaging/walk.sh [--without STEP,STEP…] [--target DIR] [--cache DIR] [--keep]
#
# Steps: train, test, wheel, install, use. --without leaves some out.
# --target DIR    cargo's target folder, kept for the next walk; by default a new one.
# --cache DIR     the folder of downloads (libtorch, pip), kept for the next walk; by default a new one.
# --keep          keeps the folder of the walk.
#
# Needs 25 GB of disk and 5 GB of downloads; about an hour and a half on two slow cores.
set -u

without= target= cache= keep=
while [ $# -gt 0 ]; do
  case $1 in
    --without) without=${2:?$1 needs steps}; shift ;;
    --target) target=${2:?$1 needs a folder}; shift ;;
    --cache) cache=${2:?$1 needs a folder}; shift ;;
    --keep) keep=yes ;;
    *) echo "error: $1: see $0 for what there is" >&2; exit 2 ;;
  esac
  shift
done
for step in $(echo "$without" | tr ',' ' '); do
  case $step in train | test | wheel | install | use) ;; *)
    echo "error: --without $step: the steps are train, test, wheel, install, use" >&2
    exit 2 ;;
  esac
done
# Installing needs the wheel, and using needs the installation.
case ",$without," in *,wheel,*) without=$without,install ;; esac
case ",$without," in *,install,*) without=$without,use ;; esac

root=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d "${TMPDIR:-/tmp}/gpipe-walk.XXXXXX")
[ -n "$keep" ] || trap 'rm -rf "$place"' EXIT
trap 'exit 130' INT TERM
home=$place/home clone=$place/clone
mkdir "$home"
# Walks through a commit: uncommitted changes are in no user's clone.
git clone --quiet "$root" "$clone" || exit 1
[ -z "$(cd "$root" && git status --porcelain)" ] || echo "note: what is not committed is not in the walk"

# The environment: the toolchain and network settings only.
environment() {
  env | grep -E '^(PATH|LANG|TERM|TMPDIR|PIP_[A-Z_]*|SSL_CERT_[A-Z]*|[A-Za-z]*_(proxy|PROXY)|CARGO_HTTP_[A-Z_]*)='
  echo "HOME=$home"
  echo "RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}"
  echo "CARGO_HOME=${CARGO_HOME:-$HOME/.cargo}"
  echo "CARGO_TERM_COLOR=never"
  [ -z "$target" ] || echo "CARGO_TARGET_DIR=$target"
  [ -z "$cache" ] || echo "XDG_CACHE_HOME=$cache"
}

table=$place/table log=$place/log
: >"$table"
failed=0

# step NAME FOLDER COMMAND: runs the command, unless the step is left out.
step() {
  name=$1
  case ",$without," in *",${name%%-*},"*)
    echo "$name|left out|-" >>"$table"
    return ;;
  esac
  echo "== $name: $3"
  begin=$(date +%s)
  environment >"$place/environment"
  # One variable a line: none of these has a line break.
  (
    IFS='
'
    # shellcheck disable=SC2046
    exec env -i $(cat "$place/environment") sh -ec "cd '$2' && $3"
  ) >"$log.$name" 2>&1 </dev/null
  code=$?
  took=$(($(date +%s) - begin))
  shown=5 verdict=ok
  if [ $code -ne 0 ]; then
    shown=60 verdict="FAILED ($code)" failed=1
  fi
  tail -n $shown "$log.$name" | sed 's/^/   /'
  echo "$name|$verdict|$took" >>"$table"
}

user=$place/user
mkdir "$user"
printf 'It is a way I have of driving off the spleen. %.0s' $(seq 400) >"$user/text.txt"

step train "$clone" 'make train ARGS="--steps 20" && test -e runs/1/metrics.jsonl'
step test "$clone" 'make test'
step wheel "$clone" 'make wheel && ls -l target/packages'
# From here on without the clone: only a wheel, a Python and a text.
step install "$user" "python3 -m venv python && python/bin/pip install --quiet torch==2.11.0 '$clone'/target/packages/gpipe_rs-*.whl"
step use-env "$user" 'python/bin/gpipe-rs env'
step use-train "$user" 'python/bin/gpipe-rs train --data text.txt --steps 20 --out runs/1'
step use-profile "$user" 'python/bin/gpipe-rs profile --model gpt --layers 2 --d-model 32 --quick -o profile.json --plan plan.json'
step use-plan "$user" 'python/bin/gpipe-rs plan --profile profile.json --devices 4 --batch 32'
step use-simulate "$user" 'python/bin/gpipe-rs simulate --compare --devices 4 --micro 8'

echo
awk -F'|' '{ printf "%-14s %-12s %s\n", $1, $2, $3 == "-" ? "" : $3 " s" }' "$table"
[ -z "$keep" ] || echo "kept: $place"
exit $failed
