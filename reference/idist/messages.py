"""Plain values as bytes, so that every backend carries numbers, strings and objects exactly.

A message is a block of `BLOCK` bytes: one tag, the payload's length in eight bytes, and the payload itself when it fits.
A longer payload follows in a second collective, whose size the blocks of all ranks have announced.
"""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

BLOCK = 64
_HEADER = struct.Struct("<cQ")
INLINE = BLOCK - _HEADER.size


def encode(value: Any) -> tuple[bytes, bytes]:
    """(tag, payload). Floats as IEEE 754 doubles, ints as two's complement of any length, strings as UTF-8."""
    kind = type(value)
    if kind is bool:
        return b"b", bytes([value])
    if kind is int:
        return b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if kind is float:
        return b"f", struct.pack("<d", value)
    if kind is str:
        return b"s", value.encode("utf-8", "surrogatepass")
    if isinstance(value, Path):
        return b"p", str(value).encode("utf-8", "surrogatepass")
    try:
        return b"o", pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"a value of type {kind.__name__} can't be sent to other ranks: {error}") from error


def decode(tag: bytes, payload: bytes) -> Any:
    """The value that ``encode`` was given."""
    if tag == b"b":
        return payload == b"\x01"
    if tag == b"i":
        return int.from_bytes(payload, "little", signed=True)
    if tag == b"f":
        return struct.unpack("<d", payload)[0]
    if tag == b"s":
        return payload.decode("utf-8", "surrogatepass")
    if tag == b"p":
        return Path(payload.decode("utf-8", "surrogatepass"))
    return pickle.loads(payload)


def block(tag: bytes, payload: bytes) -> bytes:
    """The first `BLOCK` bytes of a message."""
    inline = payload if len(payload) <= INLINE else b""
    return (_HEADER.pack(tag, len(payload)) + inline).ljust(BLOCK, b"\0")


def parse(data: bytes) -> tuple[bytes, int, bytes]:
    """(tag, length of the payload, what of it is inside the block)."""
    tag, length = _HEADER.unpack_from(data)
    return tag, length, data[_HEADER.size : _HEADER.size + length] if length <= INLINE else b""
