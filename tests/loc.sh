#!/usr/bin/env bash
# Counts lines by top folder: of the Go files that the program is made of, and of all _test.go files beside them.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A code test
# shellcheck disable=SC2016 # a template of go list, not of the shell
while read -r file; do
  file=${file#"$PWD/"}
  top=${file%%/*}
  [[ $file == */* ]] || top=.
  code[$top]=$((${code[$top]:-0} + $(wc -l <"$file")))
done < <("${GO:-go}" list -deps -f '{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .CgoFiles}}{{$d}}/{{.}}
{{end}}{{end}}{{end}}' . | grep .)
total=0 tests=0
printf '%-10s %7s %7s\n' folder code test
for top in $(printf '%s\n' "${!code[@]}" | sort); do
  depth=()
  [[ $top == . ]] && depth=(-maxdepth 1)
  test[$top]=$(find "$top" "${depth[@]}" -name '*_test.go' -exec cat {} + | wc -l)
  printf '%-10s %7d %7d\n' "$top" "${code[$top]}" "${test[$top]}"
  total=$((total + code[$top])) tests=$((tests + test[$top]))
done
printf '%-10s %7d %7d\n' total "$total" "$tests"
