"""Where the daemon is, and one connection to each."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable

import folder_paths

from .client import (
    BusyError,
    Client,
    ConnectionLostError,
    OutOfMemoryError,
    PatchbayError,
    RefusedError,
    WorkerLostError,
)
from .client.client import default_socket

START = "start"
"""In place of an address: start the installed program and talk to it over its stdin and stdout."""

PROTOCOL = 1
CHECK_SECONDS = 1.5


def setting(name: str, preset: str = "") -> str:
    """Return what the user has set in ComfyUI's settings under Patchbay."""
    try:
        path = os.path.join(folder_paths.get_user_directory(), "default", "comfy.settings.json")
        with open(path, encoding="utf-8") as f:
            value = json.load(f).get(f"Patchbay.{name}")
    except (OSError, ValueError, AttributeError):
        value = None
    return preset if value is None or value == "" else str(value)


def address_of(given: str = "") -> str:
    """Return the address that counts: $PATCHBAY_DAEMON, else the setting, else the socket of this user's daemon.

    A workflow may name one of these. Others are refused, as workflows come from strangers, within pictures too, and an
    address gets prompts, latents and LoRA weights; unless $PATCHBAY_DAEMON_FROM_WORKFLOW lets workflows choose.
    """
    given = given.strip()
    trusted = [a for a in (os.environ.get("PATCHBAY_DAEMON", ""), setting("Daemon"), default_socket()) if a]
    if not given:
        return trusted[0]
    if given not in trusted and os.environ.get("PATCHBAY_DAEMON_FROM_WORKFLOW", "").lower() not in ("1", "true"):
        raise RuntimeError(
            f"Patchbay: the workflow names the daemon {shown(given)}, which neither PATCHBAY_DAEMON nor Settings > "
            f"Patchbay has: nothing was sent to it. Empty the field `daemon`, put the address there if you trust it, "
            f"or start ComfyUI with PATCHBAY_DAEMON_FROM_WORKFLOW=1 to let every workflow choose"
        )
    return given


def shown(address: str) -> str:
    """Return an address without the user, password and token of a URL."""
    scheme, found, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if found else address


def worker_command() -> list[str]:
    """Return what starts a worker of one's own, on ComfyUI's own models."""
    program = os.environ.get("PATCHBAY_PROGRAM") or shutil.which("patchbay")
    if not program:
        raise RuntimeError(
            "Patchbay: the program `patchbay` is not on the PATH; install it, or give its place in PATCHBAY_PROGRAM"
        )
    command = [program, "worker", "--models", folder_paths.models_dir]
    devices = os.environ.get("PATCHBAY_DEVICES")
    return [*command, "--devices", devices] if devices else command


def dial(address: str) -> Client:
    """Connect to an address: a socket file, a NATS URL, or START."""
    if address == START:
        return Client.spawn(worker_command())
    if "://" in address and not address.startswith("unix://"):
        return Client.nats(address)
    return Client.socket(address.removeprefix("unix://").removeprefix("unix:"))


class Connections:
    """The connections of this process, one for each address. They are kept: what a daemon has been sent once is not
    sent again.
    """

    def __init__(self, make: Callable[[str], Client] = dial) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._open: dict[str, Client] = {}

    def get(self, address: str) -> Client:
        """Return the connection to an address. A client connects anew by itself when its daemon was restarted."""
        with self._lock:
            client = self._open.get(address)
            if client is None:
                client = self._open[address] = self._make(address)
            return client

    def drop(self, address: str, client: Client) -> None:
        """Close a connection whose daemon does not answer; the next run makes another one."""
        with self._lock:
            if self._open.get(address) is client:
                del self._open[address]
        threading.Thread(target=client.close, name="patchbay close", daemon=True).start()

    def check(self, given: str) -> str:
        """Return what is wrong with the daemon at an address, in words; empty if it answers."""
        try:
            address = address_of(given)
        except RuntimeError as err:
            return str(err)
        try:
            probe = self._make(address) if address != START else self.get(address)
        except (ConnectionLostError, OSError, RuntimeError, ImportError) as err:
            return missing(address, err)
        try:
            speaks = probe.version(CHECK_SECONDS)
        except (PatchbayError, ConnectionLostError, TimeoutError, OSError) as err:
            return f"Patchbay: the daemon at {shown(address)} does not answer: {err}"
        finally:
            if address != START:
                probe.close()
        if speaks != PROTOCOL:
            other = f"speaks protocol {speaks}, this node {PROTOCOL}: install both of one release"
            return f"Patchbay: the daemon at {shown(address)} {other}"
        return ""


def missing(address: str, err: Exception) -> str:
    """Say that no daemon is there, and what to do."""
    if address == START:
        return str(err)
    why = str(err).removeprefix(f"no daemon at {address}: ")
    advice = f"Start one with `patchbay serve --comfyui {folder_paths.base_path}`"
    advice += ", or set the address in Settings > Patchbay or in PATCHBAY_DAEMON"
    return f"Patchbay: no daemon at {shown(address)} ({why}). {advice}"


def explain(err: Exception, address: str) -> Exception:
    """Return an error of the client as one that ComfyUI shows on the node."""
    text, place = str(err), shown(address)
    if isinstance(err, ConnectionLostError):
        if "no daemon at" in text:
            return RuntimeError(missing(address, err))
        return RuntimeError(f"Patchbay: the connection to the daemon at {place} was lost: {err}. Queue again")
    if isinstance(err, RefusedError):
        advice = f" [{err.input}]" if err.input and err.input not in text else ""
        if err.code == "no_such_model":
            advice += f". The daemon at {place} must have the file in its models folder too"
        if err.code == "unsupported_format":
            advice += ". Use ComfyUI's own loader for this model"
        return RuntimeError(f"Patchbay: {text}{advice}")
    if isinstance(err, OutOfMemoryError):
        return RuntimeError(
            f"Patchbay: {text}. Free ComfyUI's own models (Settings > Patchbay > unload), or choose a plan with more "
            f"devices"
        )
    if isinstance(err, (BusyError, WorkerLostError)):
        return RuntimeError(f"Patchbay: {text}. Queue again")
    if isinstance(err, TimeoutError):
        return RuntimeError(f"Patchbay: the daemon at {place} does not answer: {err}")
    return RuntimeError(f"Patchbay: {text}") if isinstance(err, PatchbayError) else err


CONNECTIONS = Connections()
