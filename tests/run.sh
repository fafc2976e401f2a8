#!/usr/bin/env bash
# The test command behind `make test`: runs every part, prints how long each took, fails if one failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
GO=${GO:-go}
: "${WATCHED:?is set by the Makefile}" "${GPU:?is set by the Makefile}" "${LONGER:?is set by the Makefile}"
names=() times=() states=()
declare -A pids
failed=0
work=$(mktemp -d)
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$work"' EXIT

told() { # told NAME SECONDS STATUS: remember how a part ended
  local state=ok
  if (($3)); then
    state=FAILED
    failed=1
  fi
  names+=("$1") times+=("$2") states+=("$state")
}

part() { # part NAME COMMAND...: run one part and remember its time and state
  local name=$1 start=$SECONDS
  shift
  echo "=== $name: $*"
  "$@"
  told "$name" $((SECONDS - start)) $?
}

beside() { # beside NAME COMMAND...: begin a part that runs beside those that follow; meet waits for it
  local name=$1 start=$SECONDS
  shift
  (
    echo "=== $name: $*"
    "$@" &
    trap 'kill $!' TERM
    wait $!
    status=$?
    echo $((SECONDS - start)) >"$work/$name.time"
    exit "$status"
  ) &>"$work/$name" &
  pids[$name]=$!
}

meet() { # meet NAME: wait for a part that beside began, print what it printed
  local status
  wait "${pids[$1]}"
  status=$?
  cat "$work/$1"
  told "$1" "$(<"$work/$1.time")" "$status"
}

# Batch scheduling: what wakes up does not interrupt what computes. There are more processes than processors, and all
# of them together need a tenth less of those.
chrt --batch --pid 0 $$ || echo "batch scheduling NOT USED"
part build make -s build
# Tests wait more than they compute, and what the race part compiles is shared with no other: two parts side by side
# keep two processors busy.
beside race make -s race
# The CUDA backend on its fake device is `make fake`, programs that drive the daemon `make clients`; the packages of
# WATCHED run under the race detector. ./tests, the running program and its storms, takes longest and waits most: it runs
# beside the others, of which ./parallel takes longest and starts first.
read -ra watched <<<"$WATCHED"
mapfile -t packages < <("$GO" list ./... |
  grep -vxF -f <("$GO" list ./engine/cuda/... ./parallel/comm/localcuda ./parallel/comm/nccl "${watched[@]}" ./tests ./tests/clients ./tests/faults ./parallel))
tests=("$GO" test -count 1 -vet off -timeout 40m -skip "$GPU|$LONGER")
# With LONGER the other packages run whole, without it in their short forms. The emulated forms of AVX-512 take 18
# processor seconds to compile: with LONGER, and where the processor has not the real ones.
forms=()
if [[ $LONGER != NONE ]]; then
  forms=(-short)
  [[ $(bin/patchbay version) == *avx512bf16* ]] || echo "levels of AVX-512 NOT RUN: this processor has none, make test-all emulates them"
elif [[ $(bin/patchbay version) != *avx512bf16* ]]; then
  forms=(-tags emulated)
fi
beside program "${tests[@]}" ./tests/faults ./tests
part unit "${tests[@]}" "${forms[@]}" -p 3 ./parallel "${packages[@]}"
# Everything below the network; the whole program without cgo, which compiles most dependencies again, is in `make soak`.
part nocgo env CGO_ENABLED=0 "$GO" build ./engine/... ./models/... ./parallel/... ./node/...
# Behind the unit part, whose compiled packages it reads; go vet is among its linters.
part lint make -s lint
meet program
meet race

echo
for i in "${!names[@]}"; do
  printf '%-8s %5ds  %s\n' "${names[$i]}" "${times[$i]}" "${states[$i]}"
done
printf '%-8s %5ds  (race and program beside the others)\n' total "$SECONDS"
exit $failed
