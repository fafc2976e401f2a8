"""Puts Patchbay's loaders in the place of ComfyUI's, in workflow files of either format, and back.

usage: python swap.py [--back] WORKFLOW.json [OUT.json]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

SWAPS = {
    "UNETLoader": "PatchbayUNETLoader",
    "CheckpointLoaderSimple": "PatchbayCheckpointLoader",
    "ModelPatchLoader": "PatchbayModelPatchLoader",
}


def nodes_of(workflow: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the nodes of a workflow with the field that names their class: all of a graph in API format, or those of
    the editor's with its subgraphs.
    """
    if not isinstance(workflow.get("nodes"), list):
        for node in workflow.values():
            if isinstance(node, dict) and "class_type" in node:
                yield "class_type", node
        return
    for graph in (workflow, *workflow.get("definitions", {}).get("subgraphs", [])):
        for node in graph.get("nodes", []):
            yield "type", node


def weight_type(node: dict[str, Any]) -> str:
    """Return what a loader makes of the weights; only "default" leaves them as they are."""
    values = node.get("widgets_values")
    if isinstance(values, list):
        return str(values[1]) if len(values) > 1 else "default"
    return str((values if isinstance(values, dict) else node.get("inputs", {})).get("weight_dtype", "default"))


def swap(workflow: dict[str, Any], back: bool = False) -> tuple[int, list[str]]:
    """Rename the loaders of a workflow in place. Return how many, and why others were left."""
    names = {b: a for a, b in SWAPS.items()} if back else SWAPS
    count, left = 0, []
    for field, node in nodes_of(workflow):
        kind = node[field]
        if kind not in names:
            continue
        if kind == "UNETLoader" and weight_type(node) != "default":
            left.append(
                f"node {node.get('id', '')}: weight_dtype {weight_type(node)}: Patchbay computes in the type of the "
                f"file"
            )
            continue
        node[field] = names[kind]
        count += 1
        if "Node name for S&R" in node.get("properties", {}):
            node["properties"]["Node name for S&R"] = names[kind]
        if back and field == "class_type":
            node["inputs"] = {k: v for k, v in node["inputs"].items() if k not in ("daemon", "plan")}
        elif back and isinstance(node.get("widgets_values"), list):
            node["widgets_values"] = node["widgets_values"][: 2 if names[kind] == "UNETLoader" else 1]
    return count, left


def main(arguments: list[str]) -> int:
    """Do what the first lines of this file say."""
    back = "--back" in arguments
    files = [a for a in arguments if a != "--back"]
    if not 1 <= len(files) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(files[0], encoding="utf-8") as f:
            workflow = json.load(f)
    except (OSError, ValueError) as err:
        print(f"{files[0]}: no workflow: {err}", file=sys.stderr)
        return 2
    if not isinstance(workflow, dict):
        print(f"{files[0]}: no workflow: it is no JSON object", file=sys.stderr)
        return 2
    count, left = swap(workflow, back)
    text = json.dumps(workflow, ensure_ascii=False, indent=1)
    if len(files) == 2:
        with open(files[1], "w", encoding="utf-8") as f:
            f.write(text + "\n")
    else:
        print(text)
    print(f"{count} loaders swapped", *left, sep="\n", file=sys.stderr)
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
