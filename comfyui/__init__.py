"""Patchbay in ComfyUI: one picture on several devices under the stock samplers, with one loader swapped."""

from __future__ import annotations

import logging

NODE_CLASS_MAPPINGS: dict[str, type] = {}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {}
WEB_DIRECTORY = "./web"

try:
    from .nodes import NODES
except ImportError as err:
    said = str(err)
    if err.name == f"{__name__}.client":
        said = "the folder client is missing or old: `patchbay install-node <ComfyUI>` writes the nodes with it"
    logging.getLogger("patchbay").error("Patchbay's nodes are not there: %s", said)
else:
    for _, node in NODES.values():
        node.CATEGORY, node.DESCRIPTION = "Patchbay", node.__doc__  # type: ignore[attr-defined]
    NODE_CLASS_MAPPINGS = {name: cls for name, (_, cls) in NODES.items()}
    NODE_DISPLAY_NAME_MAPPINGS = {name: title for name, (title, _) in NODES.items()}

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
