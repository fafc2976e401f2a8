"""Stores safetensors files in byte planes, as the files of tests/golden are, or takes them out.

    python tests/reference/planes.py FILE.safetensors...              # writes FILE.safetensors.planes.gz in its place
    python tests/reference/planes.py FILE.safetensors.planes.gz...    # the other way, before a script adds to a file

The form is gzip of: the header as it is, then of every four bytes of data the first, then of every four the second, and
so on, then what is left. Signs and exponents of numbers stand together that way and compress, mantissas do not.
tests/golden reads it.
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
    planes = b"".join(data[header + i:header + 4 * n:4] for i in range(4))
    return gzip.compress(data[:header] + planes + data[header + 4 * n:], 6, mtime=0)


def joined(data):
    data = gzip.decompress(data)
    header, n = parts(data)
    out = bytearray(data)
    for i in range(4):
        out[header + i:header + 4 * n:4] = data[header + i * n:header + (i + 1) * n]
    return bytes(out)


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            data = file.read()
        back = data[:2] == b"\x1f\x8b"
        name = path.removesuffix(".planes.gz") if back else path + ".planes.gz"
        with open(name + ".part", "wb") as file:
            file.write(joined(data) if back else split(data))
        os.remove(path)
        os.rename(name + ".part", name)


if __name__ == "__main__":
    main()
