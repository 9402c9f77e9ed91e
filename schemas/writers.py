"""Avro writers for structs, made once from a schema: straight from the fields to the bytes.

An Avro library takes dicts, so a struct and all structs within it would become dicts first; making
them, and looking every field up in the schema again, costs several times what the bytes do. Here a
record's writer is one Python expression that joins the bytes of its fields. It does not say what is
wrong with a value that does not fit; `codec` then asks the library.
"""

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from itertools import count
from typing import Any, Final, TypeAlias, get_args, get_origin

import msgspec

#: Gives the bytes of a value.
Writer: TypeAlias = Callable[[Any], bytes]
#: A type as an .avsc file has it: a name, the definition of one, or a list for a union.
Schema: TypeAlias = Any

#: Numbers whose bytes are kept. Most are small, or the same in the records of one turn: its time,
#: an epoch, the timeout of a step.
_NUMBERS_KEPT: Final = 8_192
#: What Python calls the types that have no name of their own in Avro.
_PYTHON: Final = {
    "null": "NoneType",
    "boolean": "bool",
    "int": "int",
    "long": "int",
    "bytes": "bytes",
    "string": "str",
    "": "tuple",
}
#: The expressions that give a primitive's bytes.
_PIECES: Final = {
    "null": "b''",
    "boolean": r"b'\1' if {0} else b'\0'",
    "int": "number({0})",
    "long": "number({0})",
    "bytes": "number(len(data := {0})), data",
    "string": "number(len(data := {0}.encode())), data",
}


@lru_cache(_NUMBERS_KEPT)
def number(value: int) -> bytes:
    """Writes a number: zigzag, then seven bits a byte, the lowest first.

    Errors: OverflowError beyond 64 bits; TypeError for what is no integer.
    """
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"expected a number of 64 bits, found {value}")
    left = value << 1 ^ value >> 63
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def writer_of(schema: Schema, annotation: object, prefix: bytes = b"") -> Writer:
    """Makes the writer of values of a type by a schema; what it writes begins with the prefix.

    Shape:  the annotation's structs are called as the schema's records, and so are their fields.
    Errors: TypeError, ValueError, LookupError, AttributeError or OverflowError of the writer, for
            what does not fit; KeyError or IndexError here, if the two do not fit each other.
    """
    made = _Made()
    return made.writer(repr(prefix), made.pieces(schema, annotation, "v"))


class _Made:
    """What is made of one schema: by its name in expressions, each writer that they call."""

    def __init__(self) -> None:
        self._writers: dict[str, Any] = {"number": number}
        self._numbers = count()
        self._make: Final = {"record": self._record, "array": self._array}

    def pieces(self, schema: Schema, annotation: Any, value: str) -> str:  # noqa: ANN401
        """The expressions, with commas between, of the bytes of what an expression gives."""
        kind = _kind(schema)
        if kind in _PIECES:
            # A member of an enumeration is text in Avro, but not all text is a member.
            member = isinstance(annotation, type) and issubclass(annotation, Enum)
            return _PIECES[kind].format(f"{value}.value" if member else value)
        # What has a name is made where it is defined, and known by its name from then on.
        name = kind or f"anonymous{next(self._numbers)}"
        if isinstance(schema, list):
            self._writers[name] = self._union(schema, annotation)
        elif isinstance(schema, dict):
            self._writers[name] = self._make[schema["type"]](schema, annotation)
        return f"{name}({value})"

    def writer(self, *pieces: str) -> Writer:
        """The writer of `v` that joins these pieces."""
        source = f"lambda v: b''.join(({', '.join(pieces)},))"
        made: Writer = eval(source, self._writers)  # noqa: S307, made of our own schemas
        return made

    def _record(self, schema: Schema, annotation: Any) -> Writer:  # noqa: ANN401
        types = {field.name: field.type for field in msgspec.structs.fields(annotation)}
        fields = [(field["name"], field["type"]) for field in schema["fields"]]
        return self.writer(
            "b''", *(self.pieces(kind, types[name], f"v.{name}") for name, kind in fields)
        )

    def _array(self, schema: Schema, annotation: Any) -> Writer:  # noqa: ANN401
        item = self.writer(self.pieces(schema["items"], get_args(annotation)[0], "v"))
        # All items are one block; a block of none is the end.
        return lambda items: (
            b"".join((number(len(items)), *map(item, items), b"\0")) if len(items) else b"\0"
        )

    def _union(self, branches: list[Schema], annotation: Any) -> Writer:  # noqa: ANN401
        members = {member.__name__: member for member in get_args(annotation)}
        writers = {}
        for at, branch in enumerate(branches):
            kind = _kind(branch)
            member = members[_PYTHON.get(kind, kind)]
            writers[get_origin(member) or member] = self.writer(
                repr(number(at)), self.pieces(branch, member, "v")
            )
        return lambda value: writers[type(value)](value)


def _kind(schema: Schema) -> str:
    """The name of a type; empty for an array and a union, which have none."""
    if isinstance(schema, str):
        return schema
    return schema.get("name", "") if isinstance(schema, dict) else ""
