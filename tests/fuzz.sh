#!/usr/bin/env bash
# Runs every fuzz target for a while, or for so many executions: tests/fuzz.sh 30s|1000x [FOLDER...]
set -euo pipefail
cd "$(dirname "$0")/.."
for_each=${1:-10s}
shift || true
grep -rlE '^func Fuzz' --include='*_test.go' "${@:-.}" | while read -r file; do
  dir=./$(dirname "$file")
  grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | awk '{print $2}' | while read -r target; do
    echo "=== $dir $target $for_each"
    go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$for_each"
  done
done
