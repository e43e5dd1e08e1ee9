"""One field of one structure in a MATLAB 5 file, which is all SBD needs, with every length checked against the bytes.

scipy's reader trusts the lengths it finds: a damaged file crashes the interpreter. Here it raises a ValueError.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

_INT32, _UINT32, _MATRIX, _COMPRESSED = 5, 6, 14, 15
_STRUCT, _NUMERIC = 2, range(6, 16)  # classes of a matrix: numeric are double (6) to uint64 (15)
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}

LARGEST = 256 << 20  # bytes of a variable when unpacked

Element = tuple[int, memoryview]  # type, data


def read_field(content: bytes, variable: str, field: str) -> np.ndarray:
    """Return the numbers of `variable.field`; a KeyError names the one that the file does not have."""
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise ValueError("not a MATLAB 5 file")
    for kind, data in _elements(memoryview(content)[128:], order):
        if kind == _COMPRESSED:  # zlib checks the content by its own checksum
            kind, data = next(_elements(memoryview(_unpacked(data)), order))
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} where a variable begins")
        class_, _, name, parts = _matrix(data, order)
        if name == variable:
            if class_ != _STRUCT:
                raise ValueError(f"'{variable}' is not a structure")
            return _numbers(_fields(parts, order)[field], order)
    raise KeyError(variable)


def _unpacked(data: memoryview) -> bytes:
    """Return what zlib packed; a file of kilobytes can hold gigabytes, of which only so many are unpacked."""
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(data, LARGEST)
    if unpacker.unconsumed_tail:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB when unpacked")
    if not unpacker.eof:
        raise ValueError("the packed data is truncated")
    return content


def _elements(content: memoryview, order: str) -> Iterator[Element]:
    """Yield the elements that lie one after another in `content`."""
    place = 0
    while place < len(content):
        kind, length = struct.unpack_from(f"{order}II", content, place)
        start = place + 8
        after = start + length + (0 if kind == _COMPRESSED else -length % 8)
        if kind >> 16:  # a short one: up to four bytes of data in the second half of its tag
            kind, length, start, after = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        if start + length > min(after, len(content)):
            raise ValueError("an element is truncated")
        yield kind, content[start : start + length]
        place = after


def _matrix(content: memoryview, order: str) -> tuple[int, tuple[int, ...], str, Iterator[Element]]:
    """Return a matrix's class, its size, its name, and the elements that follow."""
    parts = _elements(content, order)
    (flags_kind, flags), (size_kind, size), (_, name) = next(parts), next(parts), next(parts)
    if (flags_kind, len(flags), size_kind) != (_UINT32, 8, _INT32):
        raise ValueError("a matrix with a broken head")
    class_ = struct.unpack(f"{order}II", flags)[0] & 0xFF
    return class_, struct.unpack(f"{order}{len(size) // 4}I", size), bytes(name).decode("ascii"), parts


def _fields(parts: Iterator[Element], order: str) -> dict[str, Element]:
    (_, width_bytes), (_, names) = next(parts), next(parts)
    (width,) = struct.unpack(f"{order}i", width_bytes)
    starts = range(0, len(names), max(1, width))
    keys = [bytes(names[start : start + width]).partition(b"\0")[0].decode("ascii") for start in starts]
    return dict(zip(keys, parts, strict=False))  # the fields of the first structure, if it is an array of several


def _numbers(element: Element, order: str) -> np.ndarray:
    kind, content = element
    if kind != _MATRIX:
        raise ValueError("a field that is not a matrix")
    class_, size, _, parts = _matrix(content, order)
    if class_ not in _NUMERIC:
        raise ValueError(f"a field of class {class_}, not numbers")
    stored, data = next(parts)
    if stored not in _STORED:
        raise ValueError(f"numbers of the unknown type {stored}")
    return np.frombuffer(data, order + _STORED[stored]).reshape(size, order="F")
