#!/usr/bin/env bash
# The checklist of a machine with an NVIDIA GPU, in two halves of at most four minutes: `tests/gpu.sh first`, `second`,
# or both without an argument. Every part runs under a limit of its own, and failures do not stop the rest. $OUT gets
# three files: gpu.jsonl, a line for each part; all.log, everything they print, growing as they run; table.txt.
#
# The machine needs bash and python3, but neither Go, git, make nor a network: `tests/gpu.sh pack` puts the programs
# into bin/gpu beforehand, which travels with the tree. `tests/gpu.sh rehearse` packs, and runs both halves, smaller, on
# the fake device, in a copy of what travels where nothing else can be found. `tests/gpu.sh tree` says what the tree
# weighs.
# shellcheck disable=SC2317 # parts run exported functions in shells of their own
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
pack=bin/gpu
most=$((60 << 20))

room=$((18 << 20)) # for the programs, where they are not built

# travels lists what of the tree a visit takes along: all but the recorded numbers, half of its bytes, which no part
# reads (rehearse has none).
travels() { git ls-files -z -- . ':!tests/golden'; }

programs() { # builds what the parts run, stripped
  mkdir -p "$1"
  local version package
  version=$(git describe --tags --always --dirty 2>/dev/null || echo unknown)
  go build -ldflags "-s -w -X main.version=$version" -o "$1/patchbay" . || return 1
  for package in engine/cuda parallel/comm/localcuda parallel/comm/nccl; do
    go test -c -tags fakegpu -ldflags "-s -w" -o "$1/$(basename "$package").test" "./$package" || return 1
  done
}

# tree_bytes prints the bytes of the tree that travel. tree fails where they leave no room for the programs.
tree_bytes() { travels | xargs -0 cat | wc -c; }
tree() {
  local size
  size=$(tree_bytes)
  printf 'the tree without tests/golden: %d bytes of %d\n' "$size" $((most - room))
  [ "$size" -gt 0 ] && [ "$size" -le $((most - room)) ]
}

# pack writes one solid archive: what the programs have in common is there once.
pack() {
  rm -rf "$pack"
  mkdir -p "$pack"
  local work size tree
  work=$(mktemp -d)
  programs "$work" &&
    tar -C "$work" --owner 0 --group 0 -cf - . | xz -T1 --x86 --lzma2=preset=6,dict=96MiB >"$pack/programs.tar.xz"
  local code=$?
  rm -rf "$work"
  [ "$code" -eq 0 ] || return 1
  git rev-parse HEAD >"$pack/commit"
  size=$(du -sb "$pack" | cut -f1)
  tree=$(tree_bytes)
  printf '%s: %d bytes, the tree without tests/golden %d, together %.1f of %d MiB\n' "$pack" "$size" "$tree" \
    "$(awk "BEGIN { print ($size + $tree) / 1048576 }")" $((most >> 20))
  [ $((size + tree)) -le "$most" ] || {
    echo "FAILED: too large to travel"
    return 1
  }
}

# rehearse runs both halves in a copy of what travels, with a PATH that has no Go, git, xz and make.
rehearse() {
  local work code=0 fake name half
  pack || return 1
  fake=$(go run ./tests/fakegpu/build) || return 1
  work=$(mktemp -d)
  mkdir -p "$work/tree" "$work/path" "$work/out"
  travels | tar --null -T - -cf - | tar -C "$work/tree" -xf -
  cp -r --parents "$pack" "$work/tree"
  for name in $(IFS=:; for d in $PATH; do ls "$d"; done | sort -u); do
    case $name in go | gofmt | git | git-* | xz* | unxz | lz* | unlzma | make | gmake) continue ;; esac
    ln -s "$(command -v "$name")" "$work/path/$name" 2>/dev/null
  done
  for half in first second; do
    (cd "$work/tree" && PATH=$work/path OUT=$work/out REHEARSE=$fake TMPDIR=$work bash tests/gpu.sh "$half") || code=1
  done
  if [ "$(find "$work/out" -type f | wc -l)" -gt 4 ]; then
    echo "FAILED: more than 4 files in the output: $(ls "$work/out")"
    code=1
  fi
  mkdir -p "$out" && cp -r "$work/out/." "$out"
  rm -rf "$work"
  return "$code"
}

out=${OUT:-bin/gpu-out}
half=${1:-both}
case $half in
  pack | rehearse | tree)
    $half
    exit
    ;;
  first | second | both) ;;
  *)
    echo "usage: tests/gpu.sh [first | second | pack | rehearse | tree]"
    exit 2
    ;;
esac
began=$SECONDS
mkdir -p "$out"
out=$(cd "$out" && pwd)
table=$out/gpu.jsonl
all=$out/all.log

# Programs, compiled kernels and pictures stay until the second half is done.
run=${TMPDIR:-/tmp}/patchbay-gpu-$UID
commit=$(cat "$pack/commit" 2>/dev/null || git rev-parse HEAD)
if [ "$(cat "$run/commit" 2>/dev/null)" != "$commit" ]; then
  rm -rf "$run"
  mkdir -p "$run/bin" "$run/cache" || exit 1
  if [ -e "$pack/programs.tar.xz" ]; then
    if command -v xz >/dev/null; then
      xz -dc "$pack/programs.tar.xz" | tar -C "$run/bin" -xf - || exit 1
    else
      python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1], "r:xz").extractall(sys.argv[2])' \
        "$pack/programs.tar.xz" "$run/bin" || exit 1
    fi
  else
    command -v go >/dev/null || {
      echo "neither $pack nor go is here: make gpu-pack where go is, and take bin/gpu along"
      exit 2
    }
    programs "$run/bin" || exit 1
  fi
  chmod +x "$run"/bin/*
  ln -s "$PWD/examples" "$run/examples"
  echo "$commit" >"$run/commit"
fi
[ "$half" = first ] || trap 'rm -rf "$run"' EXIT
patchbay=$run/bin/patchbay
export PATCHBAY_HOME=$run/home PATCHBAY_TEST_CUDA=- BENCHTIME=20x
export CUDA_CACHE_PATH=$run/cache CUDA_CACHE_MAXSIZE=1073741824
rehearsed=${REHEARSE:-}
if [ -n "$rehearsed" ]; then
  export PATCHBAY_TEST_CUDA=$rehearsed LD_LIBRARY_PATH=$rehearsed BENCHTIME=1x
fi

slow=1
[ -n "$rehearsed" ] && slow=4 # and beside other work
limit=240
[ "$half" = both ] && limit=480
end=$((began + slow * limit))
failed=0
part() { # part NAME SECONDS COMMAND...: 77 means that something it needs is not here
  local name=$1 limit=$((slow * $2)) start=$SECONDS state=ok code from
  shift 2
  printf '\n===== %s\n' "$name" >>"$all"
  from=$(stat -c %s "$all")
  [ $((end - start)) -lt "$limit" ] && limit=$((end - start))
  if [ "$limit" -lt 1 ]; then
    code=77
    echo "no time left" >>"$all"
  else
    timeout --kill-after=5 "$limit" "$@" >>"$all" 2>&1
    code=$?
  fi
  case $code in
    0) ;;
    77) state="NOT RUN" ;;
    124 | 137) state="TIMED OUT" failed=1 ;;
    *) state=FAILED failed=1 ;;
  esac
  python3 - "$name" "$state" $((SECONDS - start)) "$commit" "$all" "$from" "$table" <<'PY'
import json, sys
name, state, seconds, commit, log, start, table = sys.argv[1:]
with open(log, errors="replace") as file:
    file.seek(int(start))
    text = file.read()
if state == "ok" and "--- SKIP" in text and "--- PASS" not in text:
    state = "NOT RUN"  # every test has a reason not to
lines = [l for l in text.splitlines() if l.strip()]
keep = [l for l in lines if "/s" in l or "memory" in l or "NOT RUN" in l or "FAIL" in l] or lines[-3:]
try:
    keep = [json.dumps(json.loads(text))]
except ValueError:
    pass
row = {"part": name, "state": state, "seconds": int(seconds), "commit": commit, "said": keep[:60]}
with open(table, "a") as file:
    print(json.dumps(row), file=file)
print("%-12s %-9s %4ss" % (name, state, seconds), flush=True)
PY
}

# needs PROGRAM COMMAND...: 77 where the program is not here.
needs() {
  command -v "$1" >/dev/null || { echo "NOT RUN: $1 is not here"; return 77; }
  shift
  "$@"
}
tests() { # tests DIRECTORY PATTERN [FLAG...]: those of the package there, in its folder
  cd "$1" || return 1
  "$run/bin/$(basename "$1").test" -test.v -test.short -test.run "$2" "${@:3}"
}
sanitized() { # sanitized TOOL PATTERN
  cd engine/cuda || return 1
  needs compute-sanitizer compute-sanitizer --error-exitcode 1 --tool "$1" "$run/bin/cuda.test" -test.run "$2"
}
# pictures [FLAG...]: the demo's picture by GPUs, beside that of the processors.
pictures() {
  [ -e "$run/cpu.png" ] || "$patchbay" demo --devices cpu --out "$run/cpu.png" || return 1
  "$patchbay" demo "$@" --out "$run/gpu.png" && python3 tests/gpu/picture.py "$run/cpu.png" "$run/gpu.png"
}
plans() {
  local p code=0
  for p in ulysses=2 ring=2 tensor=2 cfg=2; do
    echo "$p" && pictures --devices cuda:0,0 --plan "$p" || code=1
  done
  return "$code"
}
export -f needs tests sanitized pictures plans
export run patchbay

# step NAME SECONDS FLAG...: steps of a model.
step() {
  part "$1" "$2" "$patchbay" bench step --json --devices cuda:0 --compute bf16 "${@:3}"
}
demo=(--size 512x512 --steps 8 --runs 3)
flux=(--model flux-dev --random-weights --warmup 0 --runs 1)
big=(--size 1024x1024) half_size=(--size 512x512) long=(--steps 28) short=(--steps 5)
vae=(--random-weights --size 1024x1024)
text=(--random-weights --tokens 512)
comm=(--json)
if [ -n "$rehearsed" ]; then
  demo=(--size 64x64 --steps 1 --warmup 0 --runs 1)
  flux=(--model flux --random-weights --warmup 0 --runs 1)
  big=(--size 64x64) half_size=(--size 32x32) long=(--steps 3) short=(--steps 2)
  vae=(--size 64x64 --runs 1 --warmup 0)
  text=(--tokens 16 --runs 1 --warmup 0)
  comm=(--size 64K --runs 1 --warmup 0 --json)
fi
first() {
  part look 15 bash -c 'needs nvidia-smi nvidia-smi && nvidia-smi -q -d CLOCK,POWER,MEMORY'
  part load 45 bash -c 'tests engine/cuda ^TestLoad$'
  part doctor 15 "$patchbay" doctor
  part conform 50 bash -c 'tests engine/cuda "^(TestConformance|TestEveryTile|TestEveryHead)$"'
  step flux 60 "${flux[@]}" "${big[@]}" "${long[@]}"
  step flux-512 25 "${flux[@]}" "${half_size[@]}" "${short[@]}"
  part rates 35 bash -c "tests engine/cuda '^$' -test.bench . -test.benchtime $BENCHTIME"
  part torch 30 bash -c 'needs python3 python3 tests/gpu/torch_rates.py'
  step step 20 "${demo[@]}"
  step graphs 20 "${demo[@]}" --graphs off
}
second() {
  part vae 20 "$patchbay" bench vae --devices cuda:0 "${vae[@]}" --json
  part text 30 "$patchbay" bench text --devices cuda:0 "${text[@]}" --json
  part picture 25 bash -c 'pictures --devices cuda:0'
  step flux-own 40 "${flux[@]}" "${big[@]}" "${short[@]}" --cuda-libs off
  part streams 30 bash -c 'tests engine/cuda "Stream|Graph|Mark|Library|CUDNN"'
  part memcheck 30 bash -c 'sanitized memcheck Conformance/late/Linear'
  part racecheck 30 bash -c 'sanitized racecheck EveryHead'
  part exchange 20 bash -c 'tests parallel/comm/localcuda .'
  part comm 15 "$patchbay" bench comm --devices cuda:0,0 "${comm[@]}"
  part nccl 15 bash -c 'tests parallel/comm/nccl .'
  part plans 40 bash -c plans
  part ranks 20 "$patchbay" bench step --devices cuda:0,0 --plan ulysses=2 --compute bf16 --json "${demo[@]}"
  [ -n "$rehearsed" ] || for model in z-image-turbo qwen-image; do
    step $model 40 --model $model --random-weights --warmup 0 --runs 1 "${big[@]}" "${short[@]}"
  done
  part torch-flux 60 bash -c 'needs python3 python3 tests/gpu/torch_flux.py 1024 5'
}
if [ "$half" = both ]; then
  first
  second
else
  $half
fi

{
  echo
  python3 - "$table" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    p = json.loads(line)
    print("%-13s %-9s %4ds" % (p["part"], p["state"], p["seconds"]))
    figures = p["part"] in ("load", "rates", "step", "ranks", "graphs", "vae", "text", "torch", "comm")
    figures |= p["part"].startswith(("torch", "flux", "z-", "qwen"))
    for said in p["said"] if figures or p["state"] != "ok" else p["said"][-1:]:
        print("    " + said[:400])
PY
  printf '%s: %d s\n' "$half" $((SECONDS - began))
} | tee "$out/table.txt"
exit $failed
