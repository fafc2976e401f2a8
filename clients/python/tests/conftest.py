"""Fixtures: a worker over stdio, and daemons over the socket and NATS, when the test run names a program to start
(PATCHBAY_PROGRAM, PATCHBAY_MODELS).
"""

from __future__ import annotations

import json
import os
import pathlib
import struct
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest

from patchbay import Client


def _setting(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"set {name} (PATCHBAY_PROGRAM: the patchbay binary, PATCHBAY_MODELS: examples/demo)")
    return value


PATIENCE = 120.0
"""Seconds after which something hangs, on a slow and busy machine too."""


def poll(what: str) -> Iterator[None]:
    """Go round a loop until it breaks, and fail if that takes longer than PATIENCE."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
    pytest.fail(f"not within {PATIENCE} s: {what}")


class Daemon:
    """A daemon on free ports with a store of its own."""

    def __init__(self, home: pathlib.Path, *args: str) -> None:
        self.home, self.socket, self.store = home, str(home / "p.sock"), home / "store"
        self.command = [
            _setting("PATCHBAY_PROGRAM"),
            "serve",
            "--socket",
            self.socket,
            "--store",
            str(self.store),
            "--log",
            "warn",
        ]
        self.command += [
            "--output",
            str(home / "out"),
            "--models",
            _setting("PATCHBAY_MODELS"),
            "--models",
            str(home / "models"),
            *args,
        ]
        self.nats = ""
        write_lora(home / "models" / "loras" / "mine.safetensors")
        self.start()

    def start(self) -> None:
        """Start it, on the port that it had before."""
        file = self.store / "daemon.json"
        file.unlink(missing_ok=True)
        env = {**os.environ, "PATCHBAY_HOME": str(self.home), "PATCHBAY_NATS_URL": "", "PATCHBAY_SOCKET": ""}
        command = [*self.command, "--listen", self.nats.partition("//")[2] or "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env=env)
        for _ in poll("the daemon listens"):
            if file.exists() and os.path.exists(self.socket):
                break
            if self.process.poll() is not None:
                assert self.nats, "the daemon ended"
                self.process = subprocess.Popen(command, env=env)  # its port is taken for a while
        self.nats = {k.lower(): v for k, v in json.loads(file.read_text()).items()}["nats"]

    def workers(self) -> list[int]:
        """Return the process ids of its workers."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it as init would, and at the latest with an error."""
        self.process.terminate()
        try:
            self.process.wait(timeout=PATIENCE)
        finally:
            self.process.kill()


def lora() -> dict[str, dict[str, np.ndarray]]:
    """Return up and down of a LoRA by module of the demo model."""
    rng, out = np.random.default_rng(3), {}
    for name, (rows, columns) in {
        "double_blocks.0.img_attn.qkv": (576, 192),
        "single_blocks.1.linear1": (1344, 192),
        "img_in": (192, 64),
    }.items():
        up, down = rng.standard_normal((rows, 32)), rng.standard_normal((32, columns)) / columns**0.5
        out[name] = {"up": up.astype(np.float32), "down": down.astype(np.float32)}
    return out


def write_lora(path: pathlib.Path) -> None:
    """Write that LoRA as kohya names it, with an alpha of 8."""
    tensors: dict[str, np.ndarray] = {}
    for name, m in lora().items():
        stem = "lora_unet_" + name.replace(".", "_")
        tensors |= {
            f"{stem}.lora_up.weight": m["up"],
            f"{stem}.lora_down.weight": m["down"],
            f"{stem}.alpha": np.float32([8]),
        }
    head, at = {}, 0
    for name, a in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values()))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Give the folder of the daemon that most tests share."""
    return tmp_path_factory.mktemp("daemon")


@pytest.fixture(scope="session")
def daemon(home: pathlib.Path) -> Iterator[Daemon]:
    """Start a daemon on a free port."""
    d = Daemon(home)
    try:
        yield d
    finally:
        d.stop()


def worker(home: pathlib.Path) -> list[str]:
    """Return the command line of a worker."""
    write_lora(home / "models" / "loras" / "mine.safetensors")
    return [
        _setting("PATCHBAY_PROGRAM"),
        "worker",
        "--models",
        _setting("PATCHBAY_MODELS"),
        "--models",
        str(home / "models"),
        "--log",
        "warn",
    ]


@pytest.fixture(params=["socket", "nats"])
def keeper(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Client]:
    """Give a client of a daemon, which keeps jobs, on every carrier in turn."""
    c = Client.socket(daemon.socket) if request.param == "socket" else Client.nats(daemon.nats)
    c.timeout = PATIENCE
    with c:
        yield c


@pytest.fixture(params=["stdio", "socket", "nats"])
def client(request: pytest.FixtureRequest, home: pathlib.Path) -> Iterator[Client]:
    """Give a client on every carrier in turn."""
    if request.param == "stdio":
        c = Client.spawn(worker(home))
    else:
        d = request.getfixturevalue("daemon")
        c = Client.socket(d.socket) if request.param == "socket" else Client.nats(d.nats)
    c.timeout = PATIENCE
    with c:
        yield c
