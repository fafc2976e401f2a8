"""What is not a number: stop, faults of the daemon, refusals."""

from __future__ import annotations

from typing import Any


async def behaviour(rig: Any, report: Any) -> None:  # noqa: ANN401
    """Run all of it."""
