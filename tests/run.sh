#!/usr/bin/env bash
# `make test`, and with an empty SHORT `make test-all`: runs every part, prints how long each took, fails if one failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
GO=${GO:-go} SHORT=${SHORT-"-short"}
work=$(mktemp -d)
trap 'kill "${beside:-}" 2>/dev/null; rm -rf "$work"' EXIT

part() { # part NAME COMMAND...: runs one part and writes its line of the table
  local name=$1 start=$SECONDS state=ok
  shift
  echo "=== $name: $*"
  "$@" || state=FAILED
  printf '%-8s %5ds  %s\n' "$name" $((SECONDS - start)) "$state" >>"$work/table"
}

# Batch scheduling: what wakes up does not interrupt what computes, a tenth less processor time (docs/speed.md).
chrt --batch --pid 0 $$ || echo "batch scheduling NOT USED"
part build make -s build
# Tests wait more than they compute, and what the race part compiles is shared with no other: it runs beside the rest.
part race make -s race &>"$work/race" &
beside=$!
# The emulated forms of AVX-512 take 18 processor seconds to compile: without -short only.
forms=()
if [[ $(bin/patchbay version) != *avx512bf16* ]]; then
  if [[ -z $SHORT ]]; then forms=(-tags emulated); else echo "levels of AVX-512 NOT RUN: test-all emulates them"; fi
fi
# What waits longest starts first.
part tests "$GO" test -count 1 -p 4 -vet off -timeout 60m ${SHORT:+"$SHORT"} "${forms[@]}" \
  ./tests/sim ./tests/faults ./parallel ./tests ./... 2>&1 | tee "$work/tests"
# Everything below the network; the whole program without cgo compiles most dependencies again and is in `make soak`.
part nocgo env CGO_ENABLED=0 "$GO" build ./engine/... ./models/... ./parallel/... ./node/...
part lint make -s lint # after the tests, whose compiled packages it reads; go vet is among its linters
if [[ -z $SHORT ]]; then part vulns make -s vulnerabilities; else echo "vulnerabilities NOT RUN: test-all asks"; fi
wait "$beside"
cat "$work/race"

# What failed, once more and shortly: the last lines are what one sees first.
awk 'function flush() { for (i = 1; i <= n; i++) if (i <= 25 || i > n - 25) print substr(line[i], 1, 300); n = 0 }
  /^--- FAIL|^panic: |^WARNING: DATA RACE/ { flush(); inside = 1 }
  /^(ok|FAIL|\?) *\t/ { flush(); inside = 0 }
  inside { line[++n] = $0 }
  /^FAIL\t/
  END { flush() }' "$work/tests" "$work/race"
echo
cat "$work/table"
printf '%-8s %5ds  (race beside the others)\n' total "$SECONDS"
! grep -q FAILED "$work/table"
