"""Checks which addresses the nodes contact, without ComfyUI: a workflow of a stranger names a daemon of its own.

usage: addresses.py FOLDER PACKAGE
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
import socket
import sys
import tempfile
from typing import Any
from unittest.mock import MagicMock

from stands import load

base = pathlib.Path(tempfile.mkdtemp(prefix="patchbay-addresses-"))
package = load(sys.argv[1], sys.argv[2])
daemon, evaluate, proxy = (importlib.import_module(f"{sys.argv[2]}.{m}") for m in ("daemon", "evaluate", "proxy"))
folders = sys.modules["folder_paths"]
folders.get_user_directory.return_value = str(base)
folders.get_filename_list.return_value = ["m.safetensors"]
folders.get_full_path_or_raise.return_value = str(base / "m.safetensors")
dialed: list[str] = []
failed: list[str] = []


def dial(address: str) -> Any:
    dialed.append(address)
    client = MagicMock()
    client.version.return_value = daemon.PROTOCOL
    return client


def expect(what: str, good: bool, *more: Any) -> None:
    if not good:
        failed.append(f"{what}: {more}")


def use(**variables: str) -> None:
    """Set the variables of the node to these, and forget what was dialed."""
    for name in ("PATCHBAY_DAEMON", "PATCHBAY_DAEMON_FROM_WORKFLOW"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    daemon.CONNECTIONS = daemon.Connections(dial)
    for module in ("nodes", "run"):
        importlib.import_module(f"{sys.argv[2]}.{module}").CONNECTIONS = daemon.CONNECTIONS
    dialed.clear()


def ran(kind: str, cls: Any, address: str, validate: bool) -> str:
    """Validate or run a node as ComfyUI does when a workflow names an address; return what the user is shown."""
    inputs = {"unet_name": "m.safetensors", "ckpt_name": "m.safetensors", "vae_name": "m.safetensors", "workflow": "{}"}
    inputs |= {"clip_name1": "m.safetensors", "clip_name2": "none", "text": "a star", "type": "flux", "mode": "auto"}
    inputs |= {"samples": {"samples": MagicMock()}, "weight_dtype": "default"}
    call = cls.VALIDATE_INPUTS if validate else getattr(cls(), cls.FUNCTION)
    names = call.__code__.co_varnames[: call.__code__.co_argcount]
    try:
        answer = call(**{k: v for k, v in inputs.items() if k in names}, daemon=address)
    except Exception as err:  # noqa: BLE001 - stand-ins cannot compute; what matters is what was dialed and said
        return f"{err}"
    return answer if isinstance(answer, str) else ""


def session(address: str) -> str:
    """Begin a sampling run of a MODEL that was loaded with an address."""
    evaluate.source_of = lambda _: proxy.Source("m.safetensors", "f", daemon=address)
    for name in ("adapters", "sampling_of", "model_patches"):
        setattr(evaluate, name, MagicMock())
    try:
        return str(evaluate.Session(MagicMock()).address)
    except RuntimeError as err:
        return str(err)


mine = str(base / "mine.sock")
foreign = [
    str(base / "theirs.sock"), "unix://" + str(base / "theirs.sock"), "nats://thief:s3cret-w0rd@198.51.100.7:4222",
    "tls://198.51.100.7", "start", mine + "/../theirs.sock", "nats://localhost@198.51.100.7",
]
asking = {k: c for k, (_, c) in package.nodes.NODES.items() if "daemon" in c.INPUT_TYPES().get("optional", {})}
expect("nodes with an address", len(asking) == 7, sorted(asking))
for where in ("variable", "setting", "socket"):
    settings = base / "default" / "comfy.settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"Patchbay.Daemon": mine} if where == "setting" else {}))
    os.environ["PATCHBAY_SOCKET"] = mine if where == "socket" else str(base / "default.sock")
    right = {"PATCHBAY_DAEMON": mine} if where == "variable" else {}
    for kind, cls in asking.items():
        for validate in (True, False):
            if validate and not hasattr(cls, "VALIDATE_INPUTS"):
                continue
            for address in foreign:
                use(**right)
                text = ran(kind, cls, address, validate)
                expect(f"{where} {kind} {address}", not dialed and "the workflow names the daemon" in text
                    and "PATCHBAY_DAEMON_FROM_WORKFLOW" in text and "s3cret" not in text, validate, dialed, text)
            for address in ("", " ", mine):
                use(**right)
                text = ran(kind, cls, address, validate)
                expect(f"{where} {kind} {address!r}", "the workflow names" not in text and set(dialed) <= {mine},
                    dialed, text)
                expect(f"{where} {kind} {address!r} dials", dialed == [mine] or not validate, dialed)
                if not validate:
                    continue
                expect(f"{where} {kind} {address!r} is valid", text == "", text)
    for address in foreign:
        use(**right)
        expect(f"session {address}", "the workflow names the daemon" in session(address), session(address))
    expect("session", session("") == mine and session(mine) == mine)

# By permission, every address is contacted.
for address in foreign[:4]:
    use(PATCHBAY_DAEMON=mine, PATCHBAY_DAEMON_FROM_WORKFLOW="1")
    text = ran("", asking["PatchbayUNETLoader"], address, True)
    expect(f"permitted {address}", dialed == [address] and text == "", dialed, text)
    expect(f"permitted session {address}", session(address) == address)
for value in ("", "0", "false"):
    use(PATCHBAY_DAEMON=mine, PATCHBAY_DAEMON_FROM_WORKFLOW=value)
    text = ran("", asking["PatchbayStatus"], foreign[0], False)
    expect(f"permission {value!r}", "the workflow names" in text and not dialed, text, dialed)

# Over a real socket: nothing connects to the one that the workflow names.
thief = socket.socket(socket.AF_UNIX)
thief.bind(foreign[0])
thief.listen()
thief.setblocking(False)
use(PATCHBAY_DAEMON=mine)
daemon.CONNECTIONS._make = daemon.dial  # noqa: SLF001
text = ran("", asking["PatchbayUNETLoader"], foreign[0], True)
try:
    thief.accept()
    failed.append("a connection came to the address in the workflow")
except BlockingIOError:
    pass

# A password in the settings is in no error.
for err in (OSError("away"), daemon.ConnectionLostError("lost"), daemon.ConnectionLostError("no daemon at x"),
    TimeoutError("late"), daemon.RefusedError({"code": "no_such_model"})):
    for text in (str(daemon.explain(err, foreign[2])), daemon.missing(foreign[2], err)):
        expect("password", "s3cret" not in text, text)
shutil.rmtree(base)
print("\n".join(failed) or f"{len(asking)} nodes, {len(foreign)} addresses")
sys.exit(bool(failed))
