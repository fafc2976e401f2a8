"""Packs what drive.py --record wrote into tests/golden/comfyui.json and comfyui.safetensors.

usage: pack.py RECORD GOLDEN VERSION
"""

from __future__ import annotations

import gzip
import hashlib
import json
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
from safetensors.numpy import load, save

folder = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(folder), str(folder.parent / "reference")]
from graphs import cases  # noqa: E402
from planes import joined, split  # noqa: E402

record, golden, version = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
tensors: dict[str, np.ndarray[Any, Any]] = {}
out: dict[str, Any] = {}
before = json.loads(gzip.decompress((golden / "comfyui.json.gz").read_bytes()))["cases"]
stored = golden / "comfyui.safetensors.planes.gz"
values = load(joined(stored.read_bytes()))


def put(v: Any) -> Any:  # noqa: ANN401
    """Return a message with the names of its tensors in place of them."""
    if isinstance(v, np.ndarray):
        assert v.dtype in (np.float32, np.int64), v.dtype
        a = np.ascontiguousarray(v).reshape(v.shape)
        name = hashlib.sha256(str((a.dtype, a.shape)).encode() + a.tobytes()).hexdigest()[:16]
        tensors[name] = a
        return {"$tensor": name}
    if isinstance(v, dict):
        return {k: put(e) for k, e in v.items()}
    return [put(e) for e in v] if isinstance(v, list) else v


def taken(v: Any) -> Any:  # noqa: ANN401
    """Return a packed message with its tensors."""
    if isinstance(v, dict):
        return values[v["$tensor"]] if set(v) == {"$tensor"} else {k: taken(e) for k, e in v.items()}
    return [taken(e) for e in v] if isinstance(v, list) else v


for name, case in cases().items():
    if not (record / f"{name}.request").exists():
        if name in before:  # it stays as it is
            out[name] = put(taken(before[name]))
        continue
    request, x = (pickle.loads((record / f"{name}.{part}").read_bytes()) for part in ("request", "x"))
    assert request is not None and np.isfinite(x).all(), name
    request.pop("id")
    for file in (request["model"], *request["model"].get("nets", [])):
        file.pop("fingerprint")  # of a file of another writer
    out[name] = {"bound": case.bound, "x": put(x), "request": put(request)}

assert len(out) >= 60, len(out)
stored.write_bytes(split(save(dict(sorted(tensors.items())))))
text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in out.items())
text = f'{{"comfyui": {json.dumps(version)}, "cases": {{\n{text}\n}}}}\n'
(golden / "comfyui.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
print(len(out), "cases,", len(tensors), "tensors,", sum(a.nbytes for a in tensors.values()), "bytes")
