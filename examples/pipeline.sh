#!/bin/sh
# Draw one picture for every line of standard input, with nothing but the nats command: submit all, then wait for each
# and print where its file is.
#
#     printf '%s\n' "a red fox" "two blue stars" | examples/pipeline.sh examples/demo.json
#
# The line is the text of node 6, its checksum is part of the job id: running the same list again submits nothing twice
# and prints the same files.
# NATS_URL names the server (default nats://127.0.0.1:4222), NATS the command.
set -eu
flow=$(cat "${1:?usage: pipeline.sh FLOW.json < prompts}")
nats=${NATS:-nats}
ask() { # ask VERB BODY [HEADER...]: the answer as one line of JSON
  verb=$1 body=$2
  shift 2
  "$nats" req "patchbay.v1.$verb" "$body" --raw --no-templates --timeout 10s "$@" 2>/dev/null
}

jobs=
while IFS= read -r text; do
  id=line-$(printf '%s' "$text" | cksum | cut -d ' ' -f 1)
  line=$(printf '%s' "$text" | sed 's/[\\"]/\\&/g' | sed 's/[\\&|]/\\&/g') # as JSON has it, and then as sed takes it
  body=$(printf '%s' "$flow" | sed "/\"6\":/s|\"text\": \"[^\"]*\"|\"text\": \"$line\"|")
  ask submit "$body" -H "Nats-Msg-Id:$id" | grep -q '"accepted"' || {
    echo "not accepted: $text" >&2
    exit 1
  }
  jobs="$jobs $id"
done

failed=0
for id in $jobs; do
  record=
  until printf '%s' "$record" | grep -qE '"state": ?"(done|failed|cancelled|expired)"'; do
    sleep 0.2
    record=$(ask "status.$id" '')
  done
  if printf '%s' "$record" | grep -qE '"state": ?"done"'; then
    printf '%s\t%s\n' "$id" "$(printf '%s' "$record" | grep -oE '"filename": ?"[^"]*"' | cut -d '"' -f 4 | tr '\n' ' ')"
  else
    printf '%s\tfailed: %s\n' "$id" "$record" >&2
    failed=1
  fi
done
exit $failed
