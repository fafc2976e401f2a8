"""Print a line for every step and every end of the jobs of a daemon, as they happen and, with --all, as they happened.

    python3 examples/events.py [--nats nats://127.0.0.1:4222] [--all] [--count N]

An ordered consumer on the stream of events: nothing is acknowledged, nothing is remembered, nothing is missed while the
program runs. Needs nats-py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy

TERMINAL = {"execution_success", "execution_error", "execution_interrupted", "expired"}


def line_of(event: dict[str, Any]) -> str | None:
    """Return what is printed of an event, None for those that say nothing to a person."""
    job, kind, data = event["job"], event["type"], event.get("data") or {}
    if kind == "progress":
        return f"{job}\tnode {event.get('node')}\tstep {data.get('value')}/{data.get('max')}"
    if kind == "retrying":
        return f"{job}\tonce more: {data.get('cause')}"
    if kind in TERMINAL:
        files = " ".join(o.get("filename", "") for o in data.get("outputs") or [])
        error = (event.get("error") or {}).get("message", "")
        return f"{job}\t{kind}\t{files or error}"
    return None


async def main() -> None:
    """Follow the stream until so many jobs have ended."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--nats", default="nats://127.0.0.1:4222", help="NATS server of the daemon")
    p.add_argument("--all", action="store_true", help="begin with the oldest event that is kept")
    p.add_argument("--count", type=int, default=0, help="stop after so many ends of jobs; 0: never")
    args = p.parse_args()
    nc = await nats.connect(args.nats, max_reconnect_attempts=-1)
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL if args.all else DeliverPolicy.NEW)
    events = await nc.jetstream().subscribe("patchbay.v1.events.>", stream="PATCHBAY_EVENTS_1", ordered_consumer=True,
        config=config)
    ends = 0
    async for message in events.messages:
        event = json.loads(message.data)
        line = line_of(event)
        if line:
            print(line, flush=True)
        ends += event["type"] in TERMINAL
        if args.count and ends >= args.count:
            break
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
