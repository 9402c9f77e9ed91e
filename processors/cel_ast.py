"""The checked syntax tree of a CEL expression, parsed from the library's serialization.

The library does not expose the tree, but `serialize` writes it as a protobuf message
`cel.expr.CheckedExpr` (github.com/google/cel-spec, proto/cel/expr/syntax.proto). Only the fields
that matter for the cost of an expression are read, so no protobuf package is needed.
"""

from collections.abc import Callable, Iterator, Mapping
from struct import unpack
from typing import Final, NamedTuple, TypeAlias

#: Wire types of protobuf.
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5


class Const(NamedTuple):
    """A literal; `text` is None unless it is a string, `value` is `...` if it is not JSON."""

    size: int
    text: str | None = None
    value: object = ...


class Ident(NamedTuple):
    """A variable."""

    name: str


class Select(NamedTuple):
    """A field of an operand, or whether the field exists (`test_only`)."""

    operand: "Node"
    field: str
    test_only: bool


class Call(NamedTuple):
    """A function or operator; the target of a method is its first argument."""

    function: str
    args: "tuple[Node, ...]"


class Items(NamedTuple):
    """A literal list, or a literal map with alternating keys and values."""

    items: "tuple[Node, ...]"
    is_map: bool = False


class Loop(NamedTuple):
    """Expansion of a macro: `all`, `exists`, `exists_one`, `map`, `filter` or `cel.bind`."""

    iter_var: str
    iter_range: "Node"
    accu_var: str
    accu_init: "Node"
    condition: "Node"
    step: "Node"
    result: "Node"


Node: TypeAlias = Const | Ident | Select | Call | Items | Loop


def read_tree(serialized: bytes) -> Node:
    """Parse the tree of an expression.

    Args:
        serialized: Result of `cel.Expression.serialize`: a `google.protobuf.Any`.

    Raises:
        ValueError: It is not one; the library's format may have changed.
    """
    try:
        checked = dict(_fields(dict(_fields(serialized))[2]))
        return _node(checked[4])
    except (KeyError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected a serialized CEL expression, found {error!r}") from None


def _node(data: bytes) -> Node:
    for number, value in _fields(data):
        reader = _READERS.get(number)
        if reader is not None:
            return reader(value)
    raise KeyError("no kind of expression")


def _const(data: bytes) -> Const:  # noqa: PLR0911, one per kind
    for number, value in _fields(data):
        match number:
            case 1:
                return Const(8, value=None)
            case 2:
                return Const(8, value=value != b"\0")
            case 3:
                integer, _ = _varint(value, 0)
                return Const(8, value=integer - 2**64 if integer >= 2**63 else integer)
            case 5:
                return Const(8, value=unpack("<d", value)[0])
            case 6:
                return Const(len(value), value.decode(), value.decode())
            case _:
                return Const(len(value))
    return Const(8)


def _ident(data: bytes) -> Ident:
    return Ident(dict(_fields(data))[1].decode())


def _select(data: bytes) -> Select:
    fields = dict(_fields(data))
    return Select(_node(fields[1]), fields[2].decode(), 3 in fields)


def _call(data: bytes) -> Call:
    function, args = "", []
    for number, value in _fields(data):
        if number == 2:
            function = value.decode()
        else:
            args.append(_node(value))
    return Call(function, tuple(args))


def _list(data: bytes) -> Items:
    return Items(tuple(_node(value) for number, value in _fields(data) if number == 1))


def _struct(data: bytes) -> Items:
    entries = [dict(_fields(value)) for number, value in _fields(data) if number == 2]
    return Items(
        tuple(_node(entry[field]) for entry in entries for field in (3, 4) if field in entry),
        is_map=True,
    )


def _loop(data: bytes) -> Loop:
    fields = dict(_fields(data))
    names = fields.get(1, b"").decode(), fields[3].decode()
    nodes = (_node(fields[number]) for number in (4, 5, 6, 7))
    return Loop(names[0], _node(fields[2]), names[1], *nodes)


#: Readers by field number of `cel.expr.Expr`.
_READERS: Final[Mapping[int, Callable[[bytes], Node]]] = {
    3: _const,
    4: _ident,
    5: _select,
    6: _call,
    7: _list,
    8: _struct,
    9: _loop,
}


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield field numbers and bytes of a message; the values of numbers are not needed."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind == _VARINT:
            _, end = _varint(data, position)
            size = end - position
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise KeyError(f"wire type {kind}")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
