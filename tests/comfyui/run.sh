#!/usr/bin/env bash
# What a real ComfyUI is needed for, headless on the CPU: comfyui-test runs the node in it and compares with its own
# sampling; comfyui-templates swaps the loaders of its official templates and runs those of families that are here with
# tiny models (TEMPLATES: the folder of the package comfyui-workflow-templates-json); families-test draws with random
# checkpoints of real names and widths there and here, on one rank and on four (an hour, 6 GB in FAMILIES).
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${COMFYUI:?say which: make $1 COMFYUI=<folder> PYTHON=<its python>}"
run() { "${PYTHON:-python3}" "tests/comfyui/$1" "$COMFYUI" --program "$PWD/bin/patchbay" "${@:2}"; }
case $1 in
  comfyui-test) run drive.py ;;
  comfyui-templates) run templates.py --templates "${TEMPLATES:?say which folder: TEMPLATES=<folder>}" ;;
  families-test) run families.py --base "${FAMILIES:-/tmp/patchbay-families}" ;;
esac
