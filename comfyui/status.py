"""What the node says while it works, and what the last run told."""

from __future__ import annotations

import contextlib
from typing import Any


class Last:
    """The figures of the last run."""

    def __init__(self) -> None:
        self.text = "no run yet"

    def note(self, what: str, metrics: dict[str, Any]) -> None:
        """Keep the figures of a run, and show them on the node that ran it."""
        steps = [float(s) for s in metrics.get("step_seconds") or []]
        middle = sorted(steps)[len(steps) // 2] * 1000 if steps else 0.0
        ranks = len(metrics.get("ranks") or [0])
        parts = [what, f"{metrics.get('plan')} on {ranks} ranks" if ranks > 1 else "one rank"] + [
            f"{middle:.1f} ms a step"
        ] * bool(steps)
        if metrics.get("reused"):
            parts.append(f"{len(metrics['reused'])} evaluations from the cache")
        if metrics.get("peak_bytes"):
            peak = metrics["peak_bytes"]
            parts.append(f"{(max(peak) if isinstance(peak, list) else peak) / 2**20:.0f} MiB at most")
        self.text = ", ".join(parts)
        tell("Patchbay: " + self.text)


LAST = Last()


def tell(text: str) -> None:
    """Show a line under the node that is running, where this ComfyUI can."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from comfy_execution.utils import get_executing_context
        from server import PromptServer

        context = get_executing_context()
        if context is not None:
            PromptServer.instance.send_progress_text(text, context.node_id)
