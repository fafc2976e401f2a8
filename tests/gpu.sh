#!/usr/bin/env bash
# The checklist of a machine with an NVIDIA GPU, in at most nine minutes: every part under a limit of its own, going on
# after failures; a JSON line a part in $OUT/gpu.jsonl, a log each beside it, and a table. The machine needs neither Go
# nor a network: `tests/gpu.sh pack` puts the programs into bin/gpu beforehand, which travels with the tree.
# `tests/gpu.sh rehearse` runs the same parts on the fake device.
# shellcheck disable=SC2317 # parts run exported functions in shells of their own
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
pack=bin/gpu
most=$((64 << 20))

programs() { # builds what the parts run, stripped
  mkdir -p "$1"
  local version
  version=$(git describe --tags --always --dirty 2>/dev/null || echo unknown)
  go build -ldflags "-s -w -X main.version=$version" -o "$1/patchbay" . || return 1
  local package
  for package in engine/cuda parallel/comm/localcuda parallel/comm/nccl parallel; do
    go test -c -tags fakegpu -ldflags "-s -w" -o "$1/$(basename "$package").test" "./$package" || return 1
  done
}

if [ "${1:-}" = pack ]; then
  rm -rf "$pack"
  programs "$pack" || exit 1
  xz -T0 -6 "$pack"/* || exit 1
  git rev-parse HEAD >"$pack/commit"
  size=$(du -sb "$pack" | cut -f1)
  tree=$(git ls-files -z | xargs -0 cat | wc -c)
  echo "$pack: $((size >> 20)) MiB, with the tree $(((size + tree) >> 20)) of 64 MiB"
  [ $((size + tree)) -le $most ]
  exit
fi

rehearse=false
[ "${1:-}" = rehearse ] && rehearse=true
out=${OUT:-bin/gpu-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
table=$out/gpu.jsonl
: >"$table"
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
if [ -e "$pack/patchbay.xz" ]; then
  for f in "$pack"/*.xz; do xz -dc "$f" >"$run/$(basename "$f" .xz)" || exit 1; done
  commit=$(cat "$pack/commit")
else
  command -v go >/dev/null || {
    echo "neither $pack nor go is here: make gpu-pack where go is, and take bin/gpu along"
    exit 2
  }
  programs "$run" || exit 1
  commit=$(git rev-parse HEAD)
fi
chmod +x "$run"/*
mkdir -p "$run/bin"
mv "$run/patchbay" "$run/bin/patchbay"
ln -s "$PWD/examples" "$run/examples"
patchbay=$run/bin/patchbay
export PATCHBAY_HOME=$run/home PATCHBAY_TEST_CUDA=- BENCHTIME=20x
if $rehearse; then
  PATCHBAY_TEST_CUDA=$(go run ./tests/fakegpu/build) || exit 1
  export LD_LIBRARY_PATH=$PATCHBAY_TEST_CUDA BENCHTIME=1x
fi

slow=1
$rehearse && slow=3
end=$((SECONDS + slow * 540))
failed=0
part() { # part NAME SECONDS COMMAND...: 77 means that something it needs is not here
  local name=$1 limit=$((slow * $2)) start=$SECONDS state=ok code
  shift 2
  [ $((end - start)) -lt "$limit" ] && limit=$((end - start))
  if [ "$limit" -lt 1 ]; then
    code=77
    echo "no time left" >"$out/$name.log"
  else
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
  fi
  case $code in
    0) ;;
    77) state="NOT RUN" ;;
    124 | 137) state="TIMED OUT" failed=1 ;;
    *) state=FAILED failed=1 ;;
  esac
  python3 - "$name" "$state" $((SECONDS - start)) "$commit" "$out/$name.log" >>"$table" <<'PY'
import json, sys
name, state, seconds, commit, log = sys.argv[1:]
text = open(log, errors="replace").read()
lines = [l for l in text.splitlines() if l.strip()]
keep = [l for l in lines if "/s" in l or "memory" in l or "NOT RUN" in l or "FAIL" in l] or lines[-3:]
try:
    keep = [json.dumps(json.loads(text))]
except ValueError:
    pass
print(json.dumps({"part": name, "state": state, "seconds": int(seconds), "commit": commit, "said": keep[:60]}))
PY
  printf '%-12s %-9s %4ds\n' "$name" "$state" $((SECONDS - start))
}

# needs PROGRAM COMMAND...: 77 where the program is not here.
needs() {
  command -v "$1" >/dev/null || { echo "NOT RUN: $1 is not here"; return 77; }
  shift
  "$@"
}
there() { # there DIRECTORY PROGRAM ARGUMENTS...: a test program in the folder of its package
  cd "$1" || return 1
  shift
  "$run/$1" -test.v "${@:2}"
}
sanitized() { needs compute-sanitizer there engine/cuda sanitize "$@"; }
pictures() {
  "$patchbay" demo --out "$run/cpu.png" && "$patchbay" demo --devices cuda:0 --out "$run/gpu.png" &&
    python3 tests/gpu/picture.py "$run/cpu.png" "$run/gpu.png"
}
export -f needs there sanitized pictures
export run patchbay
cat >"$run/sanitize" <<'SH'
#!/usr/bin/env bash
shift # -test.v
exec compute-sanitizer --error-exitcode 1 --tool "$1" "$(dirname "$0")/cuda.test" -test.run "$2"
SH
chmod +x "$run/sanitize"

# The tests of plans take minutes on all models, and the sanitizers slow a program a hundredfold: one of each kind.
plans='FakeGPUs/flux-c'
step=(--compute bf16 --size 512x512 --steps 8 --runs 3 --json)
comm=(--json)
flux=(--model flux-dev --random-weights --size 1024x1024 --steps 28 --compute bf16 --warmup 0 --runs 1 --json)
short=(--steps 5)
vae=(--random-weights --size 1024x1024)
text=(--random-weights --tokens 512)
if $rehearse; then
  flux=(--model flux --random-weights --size 64x64 --steps 3 --compute bf16 --warmup 0 --runs 1 --json)
  half=32x32
  vae=(--size 64x64 --runs 1 --warmup 0)
  text=(--tokens 16 --runs 1 --warmup 0)
  plans='PlansOnFakeGPUs$/flux-c/ulysses=2$'
  comm=(--size 64K --runs 1 --warmup 0 --json)
  step=(--compute bf16 --size 64x64 --steps 1 --warmup 0 --runs 1 --json)
fi
part look 20 bash -c 'needs nvidia-smi nvidia-smi && nvidia-smi -q -d CLOCK,POWER,MEMORY'
part doctor 20 "$patchbay" doctor
part optest 130 bash -c 'there engine/cuda cuda.test -test.short'
part rates 60 bash -c "there engine/cuda cuda.test -test.run '^$' -test.bench . -test.benchtime $BENCHTIME"
part torch 60 bash -c 'needs python3 python3 tests/gpu/torch_rates.py'
part picture 60 bash -c pictures
part step 60 "$patchbay" bench step --devices cuda:0 "${step[@]}"
part ranks 60 "$patchbay" bench step --devices cuda:0,0 --plan ulysses=2 "${step[@]}"
part graphs 40 "$patchbay" bench step --devices cuda:0 "${step[@]}" --graphs off
part flux 100 "$patchbay" bench step --devices cuda:0 "${flux[@]}"
part flux-own 60 "$patchbay" bench step --devices cuda:0 "${flux[@]}" "${short[@]}" --cuda-libs off
part flux-512 60 "$patchbay" bench step --devices cuda:0 "${flux[@]}" "${short[@]}" --size "${half:-512x512}"
part vae 40 "$patchbay" bench vae --devices cuda:0 "${vae[@]}" --json
part text 60 "$patchbay" bench text --devices cuda:0 "${text[@]}" --json
part torch-flux 120 bash -c 'needs python3 python3 tests/gpu/torch_flux.py 1024 5'
part memcheck 60 bash -c "sanitized memcheck Conformance/late/Linear"
part racecheck 60 bash -c "sanitized racecheck EveryHead"
part exchange 40 bash -c 'there parallel/comm/localcuda localcuda.test -test.short'
part comm 20 "$patchbay" bench comm --devices cuda:0,0 "${comm[@]}"
part nccl 40 bash -c 'there parallel/comm/nccl nccl.test -test.short'
part plans 60 bash -c "there parallel parallel.test -test.run '$plans'"

echo
python3 - "$table" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    p = json.loads(line)
    print("%-10s %-9s %4ds" % (p["part"], p["state"], p["seconds"]))
    part = p["part"]
    figures = part in ("rates", "step", "ranks", "graphs", "vae", "text") or part.startswith(("torch", "flux"))
    for said in p["said"] if figures or p["state"] != "ok" else p["said"][-1:]:
        print("    " + said[:400])
PY
exit $failed
