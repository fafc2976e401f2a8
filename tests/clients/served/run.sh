#!/bin/bash
# Clients of OpenAI's image API and of the Model Context Protocol, unchanged, against a daemon with templates, and the
# library that verifies webhooks against one that is killed (make served-clients): needs pip and npm. CACHE names the
# folder for packages.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
cache=${CACHE:-$(mktemp -d)}
work=$(mktemp -d)
daemon=
finish() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  wait || true
  rm -rf "$work"
  [ -n "${CACHE:-}" ] || rm -rf "$cache"
}
trap finish EXIT

python=$cache/venv/bin/python
if [ ! -x "$cache/done" ]; then
  "${PYTHON:-python3}" -m venv "$cache/venv"
  "$python" -m pip install -q openai litellm standardwebhooks mcp
  (cd "$cache" && npm install --silent --no-fund --no-audit openai)
  printf '#!/bin/sh\n' >"$cache/done" && chmod +x "$cache/done"
fi

token=served-clients-0123456789
printf %s "$token" >"$work/token"
PATCHBAY_HOME=$work/home "${PATCHBAY:-$top/bin/patchbay}" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 \
  --http-token-file "$work/token" --templates "$top/examples/templates" --store "$work/store" --input "$work/input" \
  --output "$work/output" --socket "$work/p.sock" --models "$top/examples/demo" 2>"$work/serve.log" &
daemon=$!
for _ in $(seq 1 600); do
  address=$("$python" -c "import json; print(json.load(open('$work/store/daemon.json'))['http'])" 2>/dev/null) && break
  kill -0 "$daemon" || { cat "$work/serve.log"; exit 1; }
  sleep 0.2
done
base=http://$address/v1
"$python" "$here/drive.py" "$base" "$token"
nats=$("$python" -c "import json; print(json.load(open('$work/store/daemon.json'))['nats'])")
"$python" "$here/tools.py" "${PATCHBAY:-$top/bin/patchbay}" "$top/examples/templates" "$nats" "$work/p.sock"
"$python" "$here/webhooks.py" "$work/hooks" "${PATCHBAY:-$top/bin/patchbay}"
cp "$here/drive.mjs" "$cache/" && (cd "$cache" && node drive.mjs "$base" "$token")
