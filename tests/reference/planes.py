"""Stores safetensors files of tests/golden as NAME.planes.gz, or takes them out again.

    python tests/reference/planes.py FILE.safetensors...              # writes FILE.safetensors.planes.gz in its place
    python tests/reference/planes.py FILE.safetensors.planes.gz...    # the other way, before a script adds to a file

The data behind the header is stored in four planes: of every four bytes the first, then of every four the second, and
so on, then what is left. Signs and exponents of numbers stand together that way and compress, mantissas do not.
"""
import gzip
import os
import sys


def parts(data):
    """Return where the data begins, and the length of a plane."""
    header = 8 + int.from_bytes(data[:8], "little")
    return header, (len(data) - header) // 4


def split(data):
    header, n = parts(data)
    return data[:header] + b"".join(data[header + i:header + 4 * n:4] for i in range(4)) + data[header + 4 * n:]


def joined(data):
    header, n = parts(data)
    out = bytearray(data)
    for i in range(4):
        out[header + i:header + 4 * n:4] = data[header + i * n:header + (i + 1) * n]
    return bytes(out)


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            data = file.read()
        if path.endswith(".planes.gz"):
            name, out = path.removesuffix(".planes.gz"), joined(gzip.decompress(data))
        else:
            name, out = path + ".planes.gz", gzip.compress(split(data), 6, mtime=0)
        with open(name, "wb") as file:
            file.write(out)
        os.remove(path)


if __name__ == "__main__":
    main()
