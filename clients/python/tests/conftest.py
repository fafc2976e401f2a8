"""Fixtures: a worker over stdio, and daemons over the socket and NATS, when the test run names a program to start (PATCHBAY_PROGRAM, PATCHBAY_MODELS)."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

import pytest

from patchbay import Client


def _setting(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"set {name} (PATCHBAY_PROGRAM: the patchbay binary, PATCHBAY_MODELS: examples/demo)")
    return value


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a daemon on a free port; give its socket and URL."""
    home = tmp_path_factory.mktemp("daemon")
    sock, store = str(home / "p.sock"), home / "store"
    command = [_setting("PATCHBAY_PROGRAM"), "serve", "--listen", "127.0.0.1:0", "--socket", sock, "--store", str(store)]
    command += ["--models", _setting("PATCHBAY_MODELS"), "--output", str(home / "out"), "--log", "warn"]
    env = {**os.environ, "PATCHBAY_HOME": str(home), "PATCHBAY_NATS_URL": "", "PATCHBAY_SOCKET": ""}
    process = subprocess.Popen(command, env=env)
    try:
        file = pathlib.Path(store) / "daemon.json"
        for _ in range(600):
            if file.exists() and os.path.exists(sock):
                break
            assert process.poll() is None, "the daemon ended"
            time.sleep(0.05)
        facts = {k.lower(): v for k, v in json.loads(file.read_text()).items()}
        yield {"socket": sock, "nats": facts["nats"]}
    finally:
        process.terminate()
        process.wait(timeout=40)


@pytest.fixture(params=["stdio", "socket", "nats"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Give a client on every carrier in turn."""
    if request.param == "stdio":
        c = Client.spawn([_setting("PATCHBAY_PROGRAM"), "worker", "--models", _setting("PATCHBAY_MODELS"), "--log", "warn"])
    else:
        facts = request.getfixturevalue("daemon")
        c = Client.socket(facts["socket"]) if request.param == "socket" else Client.nats(facts["nats"])
    c.timeout = 60
    with c:
        yield c
