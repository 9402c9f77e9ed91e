"""Encode states of graph runs as bytes, and decode them.

States contain authors' values as Python objects. MessagePack has 64-bit integers and JSON has
integers of any length, so longer ones are encoded as an extension.
"""

from typing import Any, Final

import msgspec

from headwater.processors.graph.state import GraphRun

_LARGE_INTEGER: Final = 1
_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1
_encode: Final = msgspec.msgpack.Encoder().encode


def encode(run: GraphRun) -> bytes:
    """Return the bytes of a state."""
    try:
        return _encode(run)
    except OverflowError:
        return _encode(_extended(msgspec.to_builtins(run)))


def _extended(value: Any) -> Any:  # noqa: ANN401, any value
    """Return a value with an extension in place of each large integer."""
    if isinstance(value, dict):
        return {key: _extended(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_extended(item) for item in value]
    if type(value) is int and not _LEAST <= value <= _MOST:
        size = value.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_LARGE_INTEGER, value.to_bytes(size, "big", signed=True))
    return value


def _large_integer(code: int, data: memoryview) -> int:
    if code != _LARGE_INTEGER:
        raise ValueError(f"expected a large integer, found an extension with the code {code}")
    return int.from_bytes(data, "big", signed=True)


decode: Final = msgspec.msgpack.Decoder(GraphRun, ext_hook=_large_integer).decode
