"""The checked syntax tree of a CEL expression: read from the library's serialization, and written.

The library does not expose the tree, but `serialize` writes it as a protobuf message
`cel.expr.CheckedExpr` (github.com/google/cel-spec, proto/cel/expr/syntax.proto), and `deserialize`
compiles such a message. Only the expression itself is read and written, without types and
positions, so no protobuf package is needed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    #: The message `cel.expr.Constant`.
    encoded: bytes = b""


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
    is_method: bool = False


class Items(NamedTuple):
    """A literal list, or a literal map with alternating keys and values.

    Attributes:
        optional: Numbers of the items, or entries, that are optional values: `[?x]`, `{?"k": x}`.
        message: Type of a protobuf message, for which the keys are names of fields.
    """

    items: "tuple[Node, ...]"
    is_map: bool = False
    optional: tuple[int, ...] = ()
    message: str = ""


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
                return Const(8, None, None, data)
            case 2:
                return Const(8, None, value != b"\0", data)
            case 3:
                integer, _ = _varint(value, 0)
                return Const(8, None, integer - 2**64 if integer >= 2**63 else integer, data)
            case 5:
                return Const(8, None, unpack("<d", value)[0], data)
            case 6:
                return Const(len(value), value.decode(), value.decode(), data)
            case _:
                return Const(len(value), encoded=data)
    return Const(8, encoded=data)


def _ident(data: bytes) -> Ident:
    return Ident(dict(_fields(data))[1].decode())


def _select(data: bytes) -> Select:
    fields = dict(_fields(data))
    return Select(_node(fields[1]), fields[2].decode(), 3 in fields)


def _call(data: bytes) -> Call:
    function, args, is_method = "", [], False
    for number, value in _fields(data):
        if number == 2:
            function = value.decode()
        else:
            is_method = is_method or number == 1
            args.append(_node(value))
    return Call(function, tuple(args), is_method)


def _list(data: bytes) -> Items:
    fields = list(_fields(data))
    optional = (index for number, value in fields if number == 2 for index in _varints(value))
    return Items(
        tuple(_node(value) for number, value in fields if number == 1), optional=tuple(optional)
    )


def _struct(data: bytes) -> Items:
    fields = list(_fields(data))
    message = dict(fields).get(1, b"").decode()
    entries = [dict(_fields(value)) for number, value in fields if number == 2]
    items: list[Node] = []
    for entry in entries:
        items += [text_const(entry[2].decode()) if message else _node(entry[3]), _node(entry[4])]
    optional = tuple(index for index, entry in enumerate(entries) if 5 in entry)
    return Items(tuple(items), True, optional, message)


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


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value


# -- writing

_TYPE_URL: Final = b"type.googleapis.com/cel.expr.CheckedExpr"
#: `false` as a message `cel.expr.Constant`.
FALSE: Final = Const(8, None, False, b"\x10\x00")


def text_const(text: str) -> Const:
    """Return a literal text."""
    data = text.encode()
    return Const(len(data), text, text, _field(6, data))


def bind(name: str, value: Node, within: Node) -> Loop:
    """Return the expansion of `cel.bind(name, value, within)`: the value is evaluated once."""
    return Loop("#unused", Items(()), name, value, FALSE, Ident(name), within)


def is_bind(node: Node) -> bool:
    """Return whether a node is an expansion of `cel.bind`."""
    return isinstance(node, Loop) and node.iter_range == Items(())


def children(node: Node) -> "tuple[Node, ...]":
    """Return the nodes directly within a node."""
    match node:
        case Select():
            return (node.operand,)
        case Call():
            return node.args
        case Items():
            return node.items
        case Loop():
            return (node.iter_range, node.accu_init, node.condition, node.step, node.result)
        case _:
            return ()


def with_children(node: Node, nodes: Sequence["Node"]) -> Node:
    """Return a node with other nodes within it, in the order of `children`."""
    match node:
        case Select():
            return node._replace(operand=nodes[0])
        case Call():
            return node._replace(args=tuple(nodes))
        case Items():
            return node._replace(items=tuple(nodes))
        case Loop():
            iter_range, accu_init, *others = nodes
            return Loop(node.iter_var, iter_range, node.accu_var, accu_init, *others)
        case _:
            return node


def write_tree(tree: Node) -> bytes:
    """Return the serialization of an expression, for `cel.Env.deserialize`."""
    return _field(1, _TYPE_URL) + _field(2, _field(4, _written(tree)))


def _written(node: Node) -> bytes:  # noqa: PLR0911, one per kind
    match node:
        case Const():
            return _field(3, node.encoded)
        case Ident():
            return _field(4, _field(1, node.name.encode()))
        case Select():
            test = b"\x18\x01" if node.test_only else b""
            return _field(5, _field(1, _written(node.operand)) + _text(2, node.field) + test)
        case Call():
            first = 1 if node.is_method else 3
            args = [
                _field(3 if index else first, _written(arg)) for index, arg in enumerate(node.args)
            ]
            return _field(6, b"".join([_text(2, node.function), *args]))
        case Items(is_map=True):
            return _field(8, _text(1, node.message) + b"".join(_entries(node)))
        case Items():
            items = b"".join(_field(1, _written(item)) for item in node.items)
            return _field(7, items + _field(2, b"".join(map(_as_varint, node.optional))))
        case Loop():
            names = _text(1, node.iter_var) + _text(3, node.accu_var)
            numbers = zip((2, 4, 5, 6, 7), children(node), strict=True)
            return _field(9, names + b"".join(_field(at, _written(part)) for at, part in numbers))


def _entries(node: Items) -> Iterator[bytes]:
    pairs = zip(node.items[::2], node.items[1::2], strict=True)
    for index, (key, value) in enumerate(pairs):
        if isinstance(key, Const) and node.message:
            left = _text(2, str(key.text))
        else:
            left = _field(3, _written(key))
        optional = b"\x28\x01" if index in node.optional else b""
        yield _field(2, left + _field(4, _written(value)) + optional)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode()) if text else b""


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes."""
    return bytes([number << 3 | _BYTES]) + _as_varint(len(data)) + data


def _as_varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
