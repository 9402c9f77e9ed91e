"""Avro writers for structs, made once from a schema: straight from the fields to the bytes.

An Avro library takes dicts, so a struct and all structs within it would become dicts first; making
them, and looking every field up in the schema again, costs several times what the bytes do. Here a
record's writer is one Python expression that joins the bytes of its fields.

Source: ADR 0017; Apache Avro 1.11 specification, "Binary Encoding".
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count
from struct import Struct
from typing import Any, Final, TypeAlias, cast, get_args

import msgspec

from headwater.schemas.avro_types import Annotation, Schema, is_enum, member_of, name_of, origin_of

#: Gives the bytes of a value, or of the fields of a record.
Writer: TypeAlias = Callable[..., bytes]

#: Numbers whose bytes are kept. Most are small, or the same in the records of one turn: its time,
#: an epoch, the timeout of a step.
_NUMBERS_KEPT: Final = 8_192
#: Numbers from 0 on that are one byte: most sizes and counts. They are found in place, because a
#: call costs more.
_SMALL: Final = 64
_SIZE: Final = f"(small[n] if (n := len(data := {{0}})) < {_SMALL} else number(n))"
#: The expressions that give a primitive's bytes.
_PIECES: Final = {
    "null": ["b''"],
    "boolean": [r"(b'\1' if {0} else b'\0')"],
    "long": [f"(small[n] if 0 <= (n := {{0}}) < {_SMALL} else number(n))"],
    "double": ["double({0})"],
    "bytes": [_SIZE, "data"],
    "string": [_SIZE.replace("{0}", "{0}.encode()"), "data"],
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


def writer_of(schema: Schema, annotation: Annotation, prefix: bytes = b"") -> Writer:
    """Makes the writer of values of a type by a schema; what it writes begins with the prefix.

    Shape:  the annotation's structs are called as the schema's records, and so are their fields.
    Errors: TypeError, ValueError, LookupError, AttributeError, OverflowError or struct.error of the
            writer, for what does not fit; LookupError here, if the two do not fit each other.
    """
    made = _Made()
    return made.writer("v", repr(prefix), *made.pieces(schema, annotation, "v"))


def fields_writer_of(schema: Schema, types: Mapping[str, Annotation], prefix: bytes) -> Writer:
    """Makes the writer of a record whose fields are its arguments, in the schema's order.

    Errors: as those of `writer_of`.
    """
    made = _Made()
    names = [f"v{at}" for at, _ in enumerate(schema["fields"])]
    pieces = [
        piece
        for field, name in zip(schema["fields"], names, strict=True)
        for piece in made.pieces(field["type"], types[field["name"]], name)
    ]
    return made.writer(", ".join(names), repr(prefix), *pieces)


def absent(value: object, default: object) -> bytes:
    """Writes nothing, for a field that an older schema lacks.

    Errors: ValueError for a value that has to be written.
    """
    if value != default:
        raise ValueError(f"expected {default!r} where the schema has no field, found {value!r}")
    return b""


class _Made:
    """What is made of one schema: by its name in expressions, each writer that they call."""

    def __init__(self) -> None:
        self._writers: dict[str, Any] = {
            "number": number,
            "small": tuple(map(number, range(_SMALL))),
            "double": Struct("<d").pack,
            "absent": absent,
        }
        self._numbers = count()
        self._make: Final = {"record": self._record, "array": self._array}

    def pieces(self, schema: Schema, annotation: Annotation, value: str) -> list[str]:
        """The expressions of the bytes of what an expression gives."""
        annotation = annotation if isinstance(schema, list) else member_of(annotation, schema)
        name = name_of(schema)
        if name in _PIECES:
            value = f"{value}.value" if is_enum(annotation) else value
            return [piece.format(value) for piece in _PIECES[name]]
        if isinstance(schema, list) and schema[0] == "null" and len(schema) == 2:
            some = " + ".join([r"b'\2'", *self.pieces(schema[1], annotation, value)])
            return [rf"(b'\0' if {value} is None else {some})"]
        # What has a name is made where it is defined, and known by its name from then on.
        name = name or f"anonymous{next(self._numbers)}"
        if isinstance(schema, list):
            self._writers[name] = self._union(schema, annotation)
        elif isinstance(schema, dict):
            self._writers[name] = self._make[schema["type"]](schema, annotation)
        return [f"{name}({value})"]

    def writer(self, arguments: str, *pieces: str) -> Writer:
        """The writer that joins these pieces."""
        source = f"lambda {arguments}: b''.join(({', '.join(pieces)},))"
        made: Writer = eval(source, self._writers)  # noqa: S307, made of our own schemas
        return made

    def _record(self, schema: Schema, annotation: Annotation) -> Writer:
        struct = cast("type[msgspec.Struct]", annotation)
        types = {field.name: field.type for field in msgspec.structs.fields(struct)}
        pieces = [
            piece
            for field in schema["fields"]
            for piece in self.pieces(field["type"], types[field["name"]], f"v.{field['name']}")
        ]
        written = {field["name"] for field in schema["fields"]}
        for field in msgspec.structs.fields(struct):
            if field.name not in written:
                default = f"default{next(self._numbers)}"
                self._writers[default] = field.default
                pieces.append(f"absent(v.{field.name}, {default})")
        return self.writer("v", "b''", *pieces)

    def _array(self, schema: Schema, annotation: Annotation) -> Writer:
        item = " + ".join(self.pieces(schema["items"], get_args(annotation)[0], "i"))
        # All items are one block; a block of none is the end.
        return self.writer("v", f"number(len(v)), *[{item} for i in v]", r"b'\0' if v else b''")

    def _union(self, branches: list[Schema], annotation: Annotation) -> Writer:
        writers: dict[object, Writer] = {}
        for at, branch in enumerate(branches):
            member = member_of(annotation, branch)
            writers[origin_of(member)] = self.writer(
                "v", repr(number(at)), *self.pieces(branch, member, "v")
            )
        return lambda value: writers[type(value)](value)
