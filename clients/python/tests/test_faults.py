"""What becomes of a client when the other side goes away, or may not do what it asks for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from patchbay import CancelledError, Client, ConnectionLostError, NotAllowedError, RunResult
from patchbay.frames import FrameTransport, WorkerTransport
from patchbay.nats_transport import NATSTransport

from .conftest import PATIENCE, Daemon, poll, worker
from .test_client import MODEL, conds, noisy_png, workflow
from .test_sampling import LATENT


def again(work: Callable[[], object]) -> None:
    """Repeat what fails while a daemon comes back."""
    for _ in poll("a connection"):
        with contextlib.suppress(ConnectionLostError, TimeoutError):
            work()
            return


@pytest.mark.parametrize("way", ["stdio", "socket", "nats"])
def test_a_client_comes_back(tmp_path: pathlib.Path, way: str) -> None:
    """The other side is killed in the middle of a run: the run ends at once with ConnectionLostError, later calls find
    the next daemon or worker.
    """
    d = None if way == "stdio" else Daemon(tmp_path)
    try:
        c = (
            Client.spawn(worker(tmp_path))
            if d is None
            else Client.socket(d.socket)
            if way == "socket"
            else Client.nats(d.nats, reconnect_time_wait=0.2)
        )
        c.timeout = PATIENCE
        with c:
            positive, going, told = conds(c, "a big red heart"), threading.Event(), queue.SimpleQueue[BaseException]()
            shared = c.empty((1, 64, 64, 3))

            def long() -> None:
                try:
                    c.sample(
                        MODEL,
                        "euler",
                        np.linspace(1, 0, 9001),
                        LATENT,
                        [{"model_conds": positive}],
                        on_progress=lambda _: going.set(),
                    )
                except BaseException as err:  # noqa: BLE001 - that is what is looked at
                    told.put(err)

            thread = threading.Thread(target=long, daemon=True)
            thread.start()
            assert going.wait(PATIENCE)
            if d is None:
                assert isinstance(c.transport, WorkerTransport)
                os.kill(c.transport.process.pid, signal.SIGKILL)
            else:
                d.kill()
            assert isinstance(told.get(timeout=PATIENCE), ConnectionLostError)
            thread.join()
            if d is not None:
                with pytest.raises((ConnectionLostError, TimeoutError)):
                    c.timeout = 1
                    c.version()
                d.start()
                c.timeout = PATIENCE
            again(c.version)
            again(lambda: c.sample(MODEL, "euler", np.linspace(1, 0, 2), LATENT, [{"model_conds": positive}]))
            np.testing.assert_array_equal(c.exec("ImageInvert", {"image": shared}).outputs[0], 1 - shared)
    finally:
        if d is not None:
            d.stop()


def test_a_run_is_given_up_when_nobody_answers(tmp_path: pathlib.Path) -> None:
    """A worker that hangs cannot be told to stop: the run ends all the same, soon after that was asked for."""
    with Client.spawn(worker(tmp_path)) as c:
        positive, asked = conds(c, "a big red heart"), [0.0]
        assert isinstance(c.transport, WorkerTransport)
        process = c.transport.process

        def freeze(_: object) -> None:
            if not asked[0]:
                process.send_signal(signal.SIGSTOP)
                tasks = pathlib.Path(f"/proc/{process.pid}/task")
                while any(") T " not in (task / "stat").read_text() for task in tasks.iterdir()):
                    time.sleep(0.01)  # its threads stop one by one
                asked[0] = time.monotonic()

        try:
            with pytest.raises(CancelledError, match="not ended within"):
                sigmas = np.linspace(1, 0, 9001)
                stop = lambda: asked[0] > 0  # noqa: E731
                c.sample(
                    MODEL,
                    "euler",
                    sigmas,
                    LATENT,
                    [{"model_conds": positive}],
                    on_progress=freeze,
                    stop=stop,
                    patience=0.3,
                )
        finally:
            process.send_signal(signal.SIGCONT)
        assert c.version() == 1


def test_close_leaves_nothing(client: Client) -> None:
    """Whoever waits is told, and neither thread nor descriptor is left."""
    told, going, reader = queue.SimpleQueue[BaseException](), threading.Event(), cast(Any, client.transport)._thread

    def long() -> None:
        try:
            client.run(workflow(steps=9000), tied=True, on_event=lambda _: going.set())
        except BaseException as err:  # noqa: BLE001 - that is what is looked at
            told.put(err)

    thread = threading.Thread(target=long, daemon=True)
    thread.start()
    assert going.wait(PATIENCE)
    client.close()
    assert isinstance(told.get(timeout=PATIENCE), ConnectionLostError)
    thread.join()
    assert not reader.is_alive()
    with pytest.raises(ConnectionLostError, match="closed"):
        client.models()
    client.close()


def test_replies_that_nobody_reads_to_the_end(client: Client) -> None:
    """Drop an iterator of replies where the garbage collector may: below a lock, and in the thread that the connection
    needs itself.
    """
    transport = client.transport
    assert isinstance(transport, (FrameTransport, NATSTransport))

    def left() -> list[Iterator[Any]]:
        replies = transport.ask("describe", {"limits": True}, timeout=PATIENCE)
        assert next(replies)["v"]
        return [replies]

    held, other = left(), left()

    def drop() -> None:
        with transport._state:
            held.clear()
        if isinstance(transport, NATSTransport):
            transport._loop.call_soon_threadsafe(other.clear)

    dropping = threading.Thread(target=drop, daemon=True)
    dropping.start()
    dropping.join(PATIENCE / 4)
    assert not dropping.is_alive(), "dropping an iterator waits for a lock"
    other.clear()
    assert client.version(PATIENCE / 4) >= 1


def test_shared_memory_goes_with_its_arrays(daemon: Daemon) -> None:
    with Client.socket(daemon.socket) as c:
        c.models()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(8):
            a = c.empty((1, 512, 512, 3))[:, ::2]
            np.testing.assert_array_equal(c.exec("ImageInvert", {"image": a}).outputs[0], 1 - a)
        del a
        assert len(os.listdir("/proc/self/fd")) <= before + 4  # those that wait for the next arrays


def test_rights_of_a_client(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with the rights of docs/security.md does all but drop what others use, and is told so at once."""
    import subprocess

    for name in ("ALICE", "ROOT"):
        monkeypatch.setenv(f"PATCHBAY_PASSWORD_{name}", "secret")
    program = os.environ["PATCHBAY_PROGRAM"]
    users = subprocess.run(
        [program, "serve", "--print-permissions=client=alice,admin=root"], check=True, capture_output=True
    ).stdout
    (tmp_path / "users.conf").write_bytes(users)
    d = Daemon(tmp_path, "--users-file", str(tmp_path / "users.conf"))
    try:
        at = d.nats.partition("//")[2].rpartition("@")[2]
        with Client.nats(f"nats://alice:secret@{at}") as alice, Client.nats(f"nats://root:secret@{at}") as root:
            alice.timeout = root.timeout = PATIENCE
            pictures: list[bytes] = []
            assert (
                len(alice.run(workflow(steps=12), on_preview=lambda _, jpeg: pictures.append(jpeg)).files) == 1
                and pictures
            )
            x = np.zeros((1, 600, 600, 3), np.float32)
            np.testing.assert_array_equal(alice.exec("ImageInvert", {"image": x}).outputs[0], 1 - x)
            alice.sample(MODEL, "euler", np.linspace(1, 0, 2), LATENT, [{"model_conds": conds(alice, "x")}])
            flow = {
                "1": {"class_type": "LoadImage", "inputs": {"image": "mine.png"}},
                "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
            }
            picture = noisy_png(600)
            with pytest.raises(NotAllowedError, match=r"patchbay\.v1\.free"):
                alice.free()
            assert alice.run(flow, inputs={"mine.png": picture}).files[0].ref["width"] == 600
            root.free()
    finally:
        d.stop()


@pytest.mark.parametrize("password", ["pa55/w0rd", "pa55?w0rd", "pa55#w0rd", "[pa55w0rd]", "pa55@w0rd/x", "0/pa55w0rd"])
def test_no_error_shows_a_password(password: str) -> None:
    """A URL that a special character of its password cuts in two is refused, and no error quotes a part of it."""
    for url in (f"nats://u:{password}@127.0.0.1:1", f"nats://127.0.0.1:1,nats://u:{password}@127.0.0.1:1"):
        with pytest.raises(ValueError, match=r"\.\.\.@127\.0\.0\.1:1 is no URL.*%2F for /") as refused:
            Client.nats(url)
        shown = "".join(traceback.format_exception(refused.value))
        assert "55" not in shown and "w0rd" not in shown, shown


class Nowhere:
    """A transport that nothing may reach."""

    lost = False


@pytest.mark.parametrize("workflow", ["flow.json", '{"1": {}}', None, pathlib.Path("flow.json")])
def test_a_workflow_is_a_dict(workflow: Any) -> None:  # noqa: ANN401
    """What is taken for one by mistake, such as the name of its file, is refused before anything is sent."""
    c = Client(Nowhere())  # type: ignore[arg-type]
    for ask in (c.run, c.submit):
        with pytest.raises(TypeError, match=f"as json.load.file. returns it, not {type(workflow).__name__}"):
            ask(workflow)


def test_errors_of_a_connection_say_what_to_do() -> None:
    """Nobody listens on port 1; and an address is no transport."""
    with pytest.raises(ConnectionLostError, match=r"no NATS server at 127\.0\.0\.1:1: .*\w"):
        Client.nats("nats://u:good@127.0.0.1:1")
    with pytest.raises(TypeError, match=r"Client\.nats\(url\)"):
        Client("nats://127.0.0.1:4222")  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["socket", "nats"])
def test_a_run_outlives_its_daemon(tmp_path: pathlib.Path, way: str) -> None:
    """The daemon is killed in the middle of a run and of a follow, and comes back: both go on under the id and end with
    the picture, no event comes twice.
    """
    d, held = Daemon(tmp_path), list[int]()
    try:
        with Client.socket(d.socket) if way == "socket" else Client.nats(d.nats) as c:
            events: list[dict[str, object]] = []
            followed: queue.SimpleQueue[object] = queue.SimpleQueue()
            going, heard = threading.Event(), threading.Event()

            def see(event: dict[str, object]) -> None:
                events.append(event)
                if event["type"] == "progress" and not going.is_set():
                    held.extend(d.workers())
                    for pid in held:  # the job does not end before the daemon does
                        os.kill(pid, signal.SIGSTOP)
                    going.set()

            result: queue.SimpleQueue[object] = queue.SimpleQueue()

            def work(to: queue.SimpleQueue[object], call: Callable[[], object]) -> threading.Thread:
                def body() -> None:
                    try:
                        to.put(call())
                    except BaseException as err:  # noqa: BLE001 - that is what is looked at
                        to.put(err)

                thread = threading.Thread(target=body, daemon=True)
                thread.start()
                return thread

            threads = [work(result, lambda: c.run(workflow(steps=40, size=64), id="lasting", on_event=see))]
            assert going.wait(PATIENCE)
            threads.append(work(followed, lambda: c.follow("lasting", on_event=lambda _: heard.set())))
            assert heard.wait(PATIENCE) and result.empty()
            d.kill()
            for pid in held:
                os.kill(pid, signal.SIGCONT)
            d.start()
            got = result.get(timeout=PATIENCE)
            assert isinstance(got, RunResult), got
            assert got.files[0].data[:4] == b"\x89PNG" and got.job == "lasting"
            assert events[-1]["type"] == "execution_success"
            keys = [(e["ts"], e["seq"]) for e in events]
            assert len(set(keys)) == len(keys)
            if way == "nats":  # a run on a socket ends with its connection, and is begun anew by whoever runs it
                assert isinstance(followed.get(timeout=PATIENCE), RunResult)
            for t in threads:
                t.join(timeout=PATIENCE)
            d.kill()
            with pytest.raises(ConnectionLostError):
                c.run(workflow(steps=2), reconnect=1)
    finally:
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        d.stop()


@pytest.mark.parametrize("kind", ["output", "execution_success"])
def test_a_lost_reply_is_asked_for_again(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """One reply does not arrive while the connection stays, as between NATS servers: the files are asked for again and
    are whole.
    """
    flow = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "mine.png"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    real, lost = NATSTransport.ask, list[Any]()

    def ask(self: NATSTransport, *args: Any, **more: Any) -> Iterator[dict[str, Any]]:
        for m in real(self, *args, **more):
            if not lost and m.get("type") == kind:
                lost.append(m)
                continue
            yield m

    monkeypatch.setattr(NATSTransport, "ask", ask)
    with Client.nats(daemon.nats) as c:
        got = c.run(flow, inputs={"mine.png": noisy_png(1000)})
        assert lost and len(got.files) == 1 and len(got.files[0].data) == got.files[0].ref["bytes"] > 2_500_000
        lost.clear()
        assert c.follow(got.job, outputs=False).files == [] and (kind == "execution_success") == bool(lost)
        lost.clear()
        assert c.follow(got.job).files[0].data == got.files[0].data and lost


def test_a_connection_that_several_close(daemon: Daemon) -> None:
    """Two threads close a connection that a third one asks on: whoever is too late hears that it was closed, nobody
    waits.
    """
    for _ in range(30):
        way = Client.nats(daemon.nats).transport
        assert isinstance(way, NATSTransport)
        heard: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        begin = threading.Barrier(3)

        def work(
            call: Callable[[], object],
            heard: queue.SimpleQueue[BaseException | None] = heard,
            begin: threading.Barrier = begin,
        ) -> None:
            begin.wait()
            try:
                call()
                heard.put(None)
            except BaseException as err:  # noqa: BLE001 - that is what is looked at
                heard.put(err)

        def ask(way: NATSTransport = way) -> None:
            while True:  # until it is closed
                list(way.ask("stats", {}, timeout=20))

        for call in (ask, way.close, way.close):
            threading.Thread(target=work, args=(call,), daemon=True).start()
        ends = [heard.get(timeout=PATIENCE) for _ in range(3)]
        assert sum(end is None for end in ends) == 2, ends
        assert all(end is None or isinstance(end, ConnectionLostError) for end in ends), ends


def test_closing_ends_what_cannot_be_cancelled(daemon: Daemon) -> None:
    """What goes on in the loop when it is cancelled has no loop any more: whoever waits for it hears of the end."""
    way = Client.nats(daemon.nats).transport
    assert isinstance(way, NATSTransport)
    going, heard = threading.Event(), queue.SimpleQueue[BaseException | None]()

    async def stubborn() -> None:
        going.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    def wait() -> None:
        try:
            way._do(stubborn())
            heard.put(None)
        except BaseException as err:  # noqa: BLE001 - that is what is looked at
            heard.put(err)

    threading.Thread(target=wait, daemon=True).start()
    assert going.wait(PATIENCE)
    way.close()
    assert isinstance(heard.get(timeout=PATIENCE), ConnectionLostError)
