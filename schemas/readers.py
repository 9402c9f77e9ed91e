"""Avro readers of structs, generated once from a schema: from the bytes directly to the fields.

The reader of a record is a Python function with one or a few statements per field. It is generated
from the schema that the record was written with and today's struct: fields that the struct no
longer has are skipped, and new fields take their defaults. So every version is read as fast as the
newest.

Source: ADR 0017; Apache Avro 1.11 specification, "Binary Encoding" and "Schema Resolution".
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from struct import Struct
from textwrap import indent
from typing import Any, Final, TypeAlias, get_args

import msgspec

from headwater.schemas.avro_types import (
    Annotation,
    Schema,
    is_enum,
    member_of,
    name_of,
    origin_of,
    structs_of,
)

#: Takes bytes and a position; returns the value there and the position after it.
Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

#: Number of cached numbers of several bytes: the same times and offsets occur repeatedly.
_NUMBERS_CACHED: Final = 8_192
#: Bytes of the longest number: 64 bits, seven in every byte.
_NUMBER_BYTES: Final = 10

_SIZE: Final = """\
size = data[at]
if not size & 0x81:
    size >>= 1
    at += 1
elif size & 1 or (more := data[at + 1]) > 0x7F:  # it is negative, or has three bytes
    size, at = size_of(data, at)
else:
    size = (size & 0x7F | more << 7) >> 1
    at += 2
end = at + size
"""
#: Statements that read a primitive at `at` into a variable, and move `at` after it. Numbers of one
#: or two bytes are read inline, because a call costs more.
_STATEMENTS: Final = {
    "null": "{0} = None\n",
    "boolean": "{0} = (False, True)[data[at]]\nat += 1\n",
    "long": """\
{0} = data[at]
if {0} < 0x80:
    {0} = {0} >> 1 ^ -({0} & 1)
    at += 1
elif (more := data[at + 1]) < 0x80:
    {0} = {0} & 0x7F | more << 7
    {0} = {0} >> 1 ^ -({0} & 1)
    at += 2
else:
    {0}, at = number(data, at)
""",
    "double": "({0},) = double(data, at)\nat += 8\n",
    "bytes": _SIZE + "{0} = data[at:end]\nat = end\n",
    "string": _SIZE + "{0} = data[at:end].decode()\nat = end\n",
}
#: Values of type bytes stay encoded.
_AS_BYTES: Final = {
    "double": "{0} = data[at:at + 8]\nat += 8\n",
    "string": _STATEMENTS["bytes"],
}


def number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number.

    Raises:
        IndexError: The bytes end before it does.
        ValueError: It exceeds 64 bits.
    """
    end = at
    while data[end] > 0x7F:
        end += 1
    end += 1
    if end - at > _NUMBER_BYTES:
        raise ValueError(f"expected a number of 64 bits, found {end - at} bytes")
    return _number(data[at:end]), end


@lru_cache(_NUMBERS_CACHED)
def _number(data: bytes) -> int:
    value = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * at
    if value >> 64:
        raise ValueError(f"expected a number of 64 bits, found {value.bit_length()}")
    return value >> 1 ^ -(value & 1)


def _size_of(data: bytes, at: int) -> tuple[int, int]:
    size, at = number(data, at)
    if size < 0:
        raise ValueError(f"expected a size, found {size}")
    return size, at


def _count_of(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of items in the next block of an array; a block may have a byte size."""
    items, at = number(data, at)
    if items < 0:
        items = -items
        _, at = number(data, at)
    return items, at


def reader_of(schema: Schema, annotation: Annotation) -> Reader:
    """Generate the reader of values that were written with a schema, as values of a type.

    Structs and fields of the annotation have the same names as records and fields of the schema.

    Returns:
        A reader. For other bytes it raises LookupError, ValueError, TypeError or struct.error;
        truncated bytes may be read instead, up to a position after their end.

    Raises:
        LookupError: Schema and type do not match.
    """
    generator = _Generator(structs_of(annotation))
    statements = generator.statements(schema, annotation, "v")
    return generator.function("value", statements + "return v, at\n")


def fields_reader_of(
    schema: Schema, types: Mapping[str, Annotation], names: Sequence[str]
) -> Reader:
    """Generate the reader of a record as the tuple of the named fields.

    A field that the schema does not have is None. Errors are those of `reader_of`.
    """
    generator = _Generator(structs_of(*types.values()))
    source, variables = generator.fields(schema, types)
    values = ", ".join(variables.get(name, "None") for name in names)
    return generator.function("fields", f"{source}return ({values},), at\n")


def composing_reader_of(
    schema: Schema, types: Mapping[str, Annotation], value: str, names: Mapping[str, object]
) -> Reader:
    """Generate the reader of a record as the value of an expression.

    Args:
        schema: The schema.
        types: Types of the record's fields. Texts and doubles of type bytes stay encoded.
        value: The expression, with fields in braces, `{user_id}`; a field that the schema does not
            have is None.
        names: Further names that the expression uses.

    Returns:
        A reader. Its errors are those of `reader_of`, and those of the expression.
    """
    generator = _Generator(structs_of(*types.values()), names)
    source, variables = generator.fields(schema, types)
    value = value.format_map(defaultdict(lambda: "None", variables))
    return generator.function("composed", f"{source}return {value}, at\n")


def _nothing() -> None:
    """Represents a record type that no struct has any more."""


class _Generator:
    """Functions generated from one schema, by their names in statements."""

    def __init__(
        self, structs: Mapping[str, type[msgspec.Struct]], names: Mapping[str, object] | None = None
    ) -> None:
        self._structs = structs
        self._names: dict[str, Any] = {
            **(names or {}),
            "number": number,
            "size_of": _size_of,
            "count_of": _count_of,
            "double": Struct("<d").unpack_from,
        }
        self._numbers = count()

    def function(self, name: str, body: str) -> Reader:
        """Compile and return the function with these statements."""
        exec(f"def {name}(data, at):\n{indent(body, '    ')}", self._names)  # noqa: S102, our schemas
        function: Reader = self._names[name]
        return function

    def fields(self, schema: Schema, types: Mapping[str, Annotation]) -> tuple[str, dict[str, str]]:
        """Return the statements that read a record's fields, and the fields' variables."""
        source, variables = "", {}
        for index, field in enumerate(schema["fields"]):
            variables[field["name"]] = f"v{index}"
            source += self.statements(field["type"], types.get(field["name"]), f"v{index}")
        return source, variables

    def statements(self, schema: Schema, annotation: Annotation, value: str) -> str:
        """Return the statements that read a value into a variable."""
        if isinstance(schema, list):
            return self._union(schema, annotation, value)
        annotation = member_of(annotation, schema)
        name = name_of(schema)
        if name in _STATEMENTS:
            members = ""
            if is_enum(annotation):
                self._names[f"of_{annotation.__name__}"] = {item.value: item for item in annotation}
                members = f"{value} = of_{annotation.__name__}[{value}]\n"
            statements = _AS_BYTES.get(name) if annotation is bytes else None
            return (statements or _STATEMENTS[name]).format(value) + members
        if not name:
            return self._array(schema, annotation, value)
        if isinstance(schema, dict):
            self._record(schema)
        return f"{value}, at = {name}(data, at)\n"

    def _record(self, schema: Schema) -> None:
        name = schema["name"]
        struct = self._structs.get(name)
        known = {} if struct is None else {f.name: f.type for f in msgspec.structs.fields(struct)}
        source, variables = self.fields(schema, known)
        arguments = ", ".join(
            f"{field}={variables[field]}" for field in variables if field in known
        )
        self._names[f"new_{name}"] = struct or _nothing
        self.function(name, f"{source}return new_{name}({arguments}), at\n")

    def _array(self, schema: Schema, annotation: Annotation, value: str) -> str:
        item = self.statements(schema["items"], next(iter(get_args(annotation)), None), f"{value}i")
        return (
            f"{value} = []\n"
            f"{value}n, at = count_of(data, at)\n"
            f"while {value}n:\n"
            f"    for _ in range({value}n):\n"
            f"{indent(item, '        ')}"
            f"        {value}.append({value}i)\n"
            f"    {value}n, at = count_of(data, at)\n"
        ) + ("" if origin_of(annotation) is list else f"{value} = tuple({value})\n")

    def _union(self, branches: list[Schema], annotation: Annotation, value: str) -> str:
        if branches[0] == "null" and len(branches) == 2:
            return (
                f"if data[at] == 2:\n    at += 1\n"
                f"{indent(self.statements(branches[1], annotation, value), '    ')}"
                f"else:\n    {value} = (None,)[data[at]]\n    at += 1\n"
            )
        readers = f"union{next(self._numbers)}"
        self._names[readers] = {
            index: self.function(
                "branch", self.statements(branch, annotation, "v") + "return v, at\n"
            )
            for index, branch in enumerate(branches)
        }
        return _STATEMENTS["long"].format(value) + f"{value}, at = {readers}[{value}](data, at)\n"
