"""Avro writers of structs, generated once from a schema: from the fields directly to the bytes.

An Avro library takes dicts, so a struct and all structs within it would have to be converted to
dicts; creating them, and looking up every field in the schema, costs several times the encoding.
Here a record's writer is one Python expression that joins the bytes of its fields.

Source: ADR 0017; Apache Avro 1.11 specification, "Binary Encoding".
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count
from struct import Struct
from typing import Any, Final, TypeAlias, cast, get_args

import msgspec

from headwater.schemas.avro_types import Annotation, Schema, is_enum, member_of, name_of, origin_of

#: Returns the bytes of a value, or of the fields of a record.
Writer: TypeAlias = Callable[..., bytes]

#: Number of cached numbers. Most are small, or equal in the records of one turn: its time, an
#: epoch, the timeout of a step.
_NUMBERS_CACHED: Final = 8_192
#: Numbers from 0 up to this are one byte: most sizes and counts. They are looked up inline, because
#: a call costs more.
_SMALL: Final = 64
_SIZE: Final = f"(small[n] if (n := len(data := {{0}})) < {_SMALL} else number(n))"
#: Expressions that return a primitive's bytes.
_PIECES: Final = {
    "null": ["b''"],
    "boolean": [r"(b'\1' if {0} else b'\0')"],
    "long": [f"(small[n] if 0 <= (n := {{0}}) < {_SMALL} else number(n))"],
    "double": ["double({0})"],
    "bytes": [_SIZE, "data"],
    "string": [_SIZE.replace("{0}", "{0}.encode()"), "data"],
}


@lru_cache(_NUMBERS_CACHED)
def number(value: int) -> bytes:
    """Encode a number: zigzag, then seven bits per byte, the lowest first.

    Raises:
        OverflowError: It exceeds 64 bits.
        TypeError: It is not an integer.
    """
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"expected a number of 64 bits, found {value}")
    remaining = value << 1 ^ value >> 63
    out = bytearray()
    while remaining > 0x7F:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    out.append(remaining)
    return bytes(out)


def writer_of(schema: Schema, annotation: Annotation, prefix: bytes = b"") -> Writer:
    """Generate the writer of values of a type with a schema; its output begins with the prefix.

    Structs and fields of the annotation have the same names as records and fields of the schema.

    Returns:
        A writer. For values that do not match it raises TypeError, ValueError, LookupError,
        AttributeError, OverflowError or struct.error.

    Raises:
        LookupError: Schema and type do not match.
    """
    generator = _Generator()
    return generator.writer("v", repr(prefix), *generator.pieces(schema, annotation, "v"))


def fields_writer_of(schema: Schema, types: Mapping[str, Annotation], prefix: bytes) -> Writer:
    """Generate the writer of a record: it takes the fields as arguments, in the schema's order.

    Errors are those of `writer_of`.
    """
    generator = _Generator()
    names = [f"v{index}" for index, _ in enumerate(schema["fields"])]
    pieces = [
        piece
        for field, name in zip(schema["fields"], names, strict=True)
        for piece in generator.pieces(field["type"], types[field["name"]], name)
    ]
    return generator.writer(", ".join(names), repr(prefix), *pieces)


def absent(value: object, default: object) -> bytes:
    """Write nothing, for a field that an older schema lacks.

    Raises:
        ValueError: The value is not the default and would be lost.
    """
    if value != default:
        raise ValueError(f"expected {default!r} where the schema has no field, found {value!r}")
    return b""


class _Generator:
    """Writers generated from one schema, by their names in expressions."""

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
        """Return expressions of the bytes of a value, which is an expression as well."""
        annotation = annotation if isinstance(schema, list) else member_of(annotation, schema)
        name = name_of(schema)
        if name in _PIECES:
            value = f"{value}.value" if is_enum(annotation) else value
            return [piece.format(value) for piece in _PIECES[name]]
        if isinstance(schema, list) and schema[0] == "null" and len(schema) == 2:
            some = " + ".join([r"b'\2'", *self.pieces(schema[1], annotation, value)])
            return [rf"(b'\0' if {value} is None else {some})"]
        # Named types are generated where they are defined, and referenced by name afterwards.
        name = name or f"anonymous{next(self._numbers)}"
        if isinstance(schema, list):
            self._writers[name] = self._union(schema, annotation)
        elif isinstance(schema, dict):
            self._writers[name] = self._make[schema["type"]](schema, annotation)
        return [f"{name}({value})"]

    def writer(self, arguments: str, *pieces: str) -> Writer:
        """Compile and return the writer that joins these expressions."""
        source = f"lambda {arguments}: b''.join(({', '.join(pieces)},))"
        writer: Writer = eval(source, self._writers)  # noqa: S307, generated from our own schemas
        return writer

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
        # All items are one block; an empty block ends the array.
        return self.writer("v", f"number(len(v)), *[{item} for i in v]", r"b'\0' if v else b''")

    def _union(self, branches: list[Schema], annotation: Annotation) -> Writer:
        writers: dict[object, Writer] = {}
        for index, branch in enumerate(branches):
            member = member_of(annotation, branch)
            writers[origin_of(member)] = self.writer(
                "v", repr(number(index)), *self.pieces(branch, member, "v")
            )
        return lambda value: writers[type(value)](value)
