#!/usr/bin/env bash
# The longest forms: 5,000 seeds of tests/sim, every plan on every network, storms with many jobs, the tables of drift,
# 10,000,000 executions of every parser of bytes from outside, the commands of README.md; then the server inside a
# daemon under the race detector, the emulated levels, the visit to a GPU machine rehearsed and the program without cgo.
# Three hours on two processors.
set -euxo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}
make -s sim SEEDS=5000
"$GO" test -count 1 -timeout 90m -tags soak ./parallel -v
"$GO" test -count 1 -timeout 120m -tags soak ./tests/faults ./tests/readme -v
"$GO" test -count 1 -timeout 120m -p 1 -tags soak ./ipc/... ./node/... -v
"$GO" test -count 1 -timeout 60m -race ./ipc/broker ./daemon
"$GO" test -count 1 -tags emulated ./engine/cpu
make -s gpu-rehearse
CGO_ENABLED=0 "$GO" build -o /dev/null .
