"""Webhooks of a daemon (FOLDER, PROGRAM) that is killed again and again, for a receiver that fails 9 of 10 times: the
library of Standard Webhooks verifies every report, and every job is reported."""
import base64
import collections
import http.server
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.request

from standardwebhooks.webhooks import Webhook

FOLDER, PROGRAM = sys.argv[1:3]
JOBS = 6
SECRET = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
tries, acked, bad = collections.Counter(), {}, []


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            event = Webhook(SECRET).verify(body, dict(self.headers))
        except Exception as e:
            bad.append(repr(e))
            event = json.loads(body)
        key = self.headers["webhook-id"]
        tries[key] += 1
        if tries[key] >= 10:
            acked[key] = event
        self.send_response(204 if tries[key] >= 10 else 503)
        self.end_headers()

    def log_message(self, *args):
        pass


def ask(address, path, body=None, header=None):
    q = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode() if body else None, header or {})
    return json.loads(urllib.request.urlopen(q, timeout=60).read())


def launch():
    """Starts the daemon and returns it with its address."""
    file = f"{FOLDER}/store/daemon.json"
    if os.path.exists(file):
        os.remove(file)
    daemon = subprocess.Popen(
        [PROGRAM, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--webhook-secret-file",
         f"{FOLDER}/secret", "--webhook-host", "127.0.0.1", "--store", f"{FOLDER}/store", "--input", f"{FOLDER}/input",
         "--output", f"{FOLDER}/output", "--socket", f"{FOLDER}/s", "--models", FOLDER],
        stderr=open(f"{FOLDER}/log", "a"), env=dict(os.environ, PATCHBAY_HOME=FOLDER))
    while not os.path.exists(file):
        assert daemon.poll() is None, open(f"{FOLDER}/log").read()[-2000:]
        time.sleep(0.1)
    return daemon, json.load(open(file))["http"]


def main():
    os.makedirs(FOLDER)
    with open(f"{FOLDER}/secret", "w") as f:
        f.write(SECRET)
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    kills, jobs, end = 0, [], time.time() + 600
    while len(acked) < JOBS and time.time() < end:
        daemon, address = launch()
        while len(jobs) < JOBS:
            graph = {"1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1,
                                                                  "color": len(jobs)}},
                     "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "hook", "images": ["1", 0]}}}
            jobs.append(ask(address, "/prompt", {"prompt": graph},
                            {"Patchbay-Webhook": f"http://127.0.0.1:{receiver.server_port}/x"})["prompt_id"])
        before = sum(tries.values())
        while len(acked) < JOBS and sum(tries.values()) < before + 3 * JOBS and time.time() < end:
            time.sleep(0.05)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        kills += 1
    named = sorted(e["data"]["job"] for e in acked.values())
    assert not bad, bad[:3]
    assert named == sorted(jobs), (named, jobs)
    assert all(e["type"] == "job.done" and len(e["data"]["outputs"]) == 1 for e in acked.values()), acked
    print(f"webhooks: {JOBS} jobs reported in {sum(tries.values())} verified requests, {kills} kills")


main()
