#!/usr/bin/env bash
# The test command behind `make test`: runs every part, prints how long each took, fails if one failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
GO=${GO:-go}
: "${WATCHED:?is set by the Makefile}" "${CLIENTS:?is set by the Makefile}"
names=() times=() states=()
failed=0

part() { # part NAME COMMAND...: run one part and remember its time and state
  local name=$1 start=$SECONDS state=ok
  shift
  echo "=== $name: $*"
  if ! "$@"; then
    state=FAILED
    failed=1
  fi
  names+=("$name") times+=($((SECONDS - start))) states+=("$state")
}

part build make -s build
# The race part shares no compiled package with the others and waits more than it computes: it runs beside them, and its
# time in the table is what it takes longer.
beside=$(mktemp)
make -s race &>"$beside" &
race=$!
trap 'kill "$race" 2>/dev/null; rm -f "$beside"' EXIT
part lint make -s lint # go vet is among its linters
# Four packages at a time: many tests wait more than they compute. ./tests and ./parallel first: they take longest, and
# what is listed first starts first. The CUDA backend on its fake device is `make fake`, programs that drive the
# daemon `make clients`; the packages of WATCHED run under the race detector.
first=(./tests ./parallel)
read -ra watched <<<"$WATCHED"
mapfile -t packages < <("$GO" list ./... |
  grep -vxF -f <("$GO" list ./engine/cuda/... ./parallel/comm/localcuda ./parallel/comm/nccl "${watched[@]}" "${first[@]}"))
# The emulated forms of AVX-512 take 18 processor seconds to compile: only where the processor has not the real ones.
levels=()
[[ $(bin/patchbay version) == *avx512bf16* ]] || levels=(-tags emulated)
part unit "$GO" test "${levels[@]}" -count 1 -p 4 -vet off -timeout 40m -skip "FakeGPU|^TestCUDA|$CLIENTS" "${first[@]}" "${packages[@]}"
# Everything below the network; the whole program without cgo, which compiles most dependencies again, is in `make soak`.
part nocgo env CGO_ENABLED=0 "$GO" build ./engine/... ./models/... ./parallel/... ./node/...
part race wait "$race"
cat "$beside"

echo
total=0
for i in "${!names[@]}"; do
  printf '%-8s %5ds  %s\n' "${names[$i]}" "${times[$i]}" "${states[$i]}"
  total=$((total + times[i]))
done
printf '%-8s %5ds\n' total "$total"
exit $failed
