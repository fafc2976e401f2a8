"""Imports the node package without ComfyUI and prints the names of its nodes; whatever it needs is a stand-in.

usage: stands.py FOLDER PACKAGE
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock


class Stands(MetaPathFinder, Loader):
    """Finds a stand-in for every module of ComfyUI, and for the packages that it brings."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] in ("comfy", "folder_paths", "nodes", "numpy", "PIL", "server", "torch"):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock()

    def exec_module(self, module: Any) -> None:
        pass


def load(folder: str, package: str) -> Any:
    """Return the node package."""
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, Stands())
    sys.path.insert(0, folder)
    return importlib.import_module(package)


if __name__ == "__main__":
    print(*load(sys.argv[1], sys.argv[2]).NODE_CLASS_MAPPINGS)
