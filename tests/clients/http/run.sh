#!/bin/bash
# Client packages of ComfyUI, unchanged, against a daemon (make http-clients): needs pip. With COMFYUI=TREE and
# COMFYUI_PYTHON=PYTHON also against that ComfyUI, in the same run. CACHE names the folder for packages.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../../..
cache=${CACHE:-$(mktemp -d)}
work=$(mktemp -d)
port=${PORT:-18199}
pids=()
finish() {
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  wait || true
  rm -rf "$work"
  [ -n "${CACHE:-}" ] || rm -rf "$cache"
}
trap finish EXIT

python=$cache/venv/bin/python
if [ ! -x "$cache/done" ]; then
  "${PYTHON:-python3}" -m venv "$cache/venv"
  "$python" -m pip install -q aiohttp pillow numpy requests websocket-client websockets httpx pydantic huggingface_hub \
    comfy-cli
  for name in comfy_api_simplified comfyui_utils comfy_ui_client comfyapi comfyui_xy comfyflow comfy_toolkit \
    comfyui_async_api_tool comfy_proxy pycomfy; do
    "$python" -m pip install -q --no-deps -t "$cache/pk/$name" "${name//_/-}"
  done
  printf '#!/bin/sh\n' >"$cache/done" && chmod +x "$cache/done"
fi

up() { # waits until a server answers
  for _ in $(seq 1 300); do
    "$python" -c "import urllib.request as u; u.urlopen('http://$1/prompt', timeout=5)" 2>/dev/null && return
    sleep 1
  done
  echo "$1 does not answer" >&2
  exit 1
}

PATCHBAY_HOME=$work/home "${PATCHBAY:-$top/bin/patchbay}" serve --listen 127.0.0.1:0 --http "127.0.0.1:$port" --store \
  "$work/store" --input "$work/input" --output "$work/output" --socket "$work/p.sock" --models "$top/examples/demo" \
  2>"$work/serve.log" &
pids+=($!)
addresses=("127.0.0.1:$port")
if [ -n "${COMFYUI:-}" ]; then
  mkdir -p "$work"/base/{models,input,output,user}
  cp -r "$COMFYUI/custom_nodes" "$work/base/"
  (cd "$COMFYUI" && exec "${COMFYUI_PYTHON:-python3}" main.py --cpu --listen 127.0.0.1 --port $((port + 1)) \
    --base-directory "$work/base" --disable-api-nodes --disable-auto-launch --database-url sqlite:///:memory: \
    >"$work/comfyui.log" 2>&1) &
  pids+=($!)
  addresses+=("127.0.0.1:$((port + 1))")
fi
for a in "${addresses[@]}"; do up "$a"; done
PK=$cache/pk COMFYUI=${COMFYUI:-} "$python" "$here/drive.py" "${addresses[@]}"
