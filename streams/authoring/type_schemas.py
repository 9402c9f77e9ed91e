"""JSON Schemas of authors' types.

A schema accepts what reading the type accepts, so that params that do not fit are refused before
an instance is created, by processes that do not have the author's code. `msgspec.json.schema`
describes less: it gives datetimes no format, and keys of mappings no rule.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
from msgspec import inspect as mi

from headwater.streams.authoring.pydantic_models import is_model, model_schema

Schema: TypeAlias = dict[str, Any]

#: Texts with an offset from UTC.
_OFFSET: Final = r"([Zz]|[+-]\d\d:?\d\d)$"
_FLOAT_MAX: Final = sys.float_info.max
_BOUNDS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
#: Types without rules of their own.
_FIXED: Final[Mapping[type, Schema]] = {
    mi.AnyType: {},
    mi.NoneType: {"type": "null"},
    mi.BoolType: {"type": "boolean"},
    mi.DateType: {"type": "string", "format": "date"},
    # Without years, months and weeks, which msgspec does not read.
    mi.TimeDeltaType: {
        "type": "string",
        "format": "duration",
        "pattern": "^[+-]?[Pp][0-9.]*[Dd]?([Tt].*)?$",
    },
    mi.UUIDType: {"type": "string", "format": "uuid"},
    # A JSON number is a decimal, too.
    mi.DecimalType: {"type": ["string", "number"], "format": "decimal"},
}
#: Keys of mappings. Each key has one spelling, so that no two of them become one key.
_KEYS: Final[Mapping[type, Schema]] = {
    mi.AnyType: {},
    mi.DateType: {"format": "date"},
    mi.IntType: {"pattern": "^(0|-?[1-9][0-9]*)$", "maxLength": 4_000},
    mi.UUIDType: {"pattern": "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"},
}
#: Types whose values are what the JSON parser returns, if their parts are.
_PLAIN: Final = (
    *(mi.AnyType, mi.NoneType, mi.BoolType, mi.IntType, mi.FloatType, mi.StrType),
    *(mi.ListType, mi.DictType, mi.TypedDictType, mi.UnionType, mi.LiteralType),
)


class TypeSchema:
    """The schema of one type, with the classes in it as definitions."""

    def __init__(self, form: Any) -> None:  # noqa: ANN401
        """Describe a type.

        Args:
            form: A type, as in an annotation.

        Raises:
            TypeError: JSON cannot be read as this type; the message names the part and says why.
        """
        self._names: dict[Any, str] = {}
        self._definitions: dict[str, Schema] = {}
        #: Whether a value of the type is what the JSON parser returns, so that nothing is read.
        self.is_plain = True
        root = self._schema(mi.type_info(form))
        self.schema: Schema = root
        if self._definitions:
            self.schema = {**root, "$defs": self._definitions}

    def _schema(self, kind: mi.Type) -> Schema:
        extra: Schema = {}
        while isinstance(kind, mi.Metadata):
            extra |= kind.extra_json_schema or {}
            kind = kind.type
        found = self._schema_of(kind)
        return {**found, **extra} if extra else found

    def _schema_of(self, kind: mi.Type) -> Schema:
        if not isinstance(kind, _PLAIN):
            self.is_plain = False
        if type(kind) in _FIXED:
            return dict(_FIXED[type(kind)])
        if type(kind) in _RULES:
            return _RULES[type(kind)](kind)
        if type(kind) in self._PARTS:
            return self._PARTS[type(kind)](self, kind)
        cls = getattr(kind, "cls", None)
        if cls is None:
            raise TypeError(f"{type(kind).__name__.removesuffix('Type')} is no type for JSON")
        return {} if cls is object else self._reference(cls, kind)

    def _union(self, kind: mi.UnionType) -> Schema:
        structs = [each for each in kind.types if isinstance(each, mi.StructType)]
        options = [self._schema(each) for each in kind.types]
        if len(structs) > 1:
            # One of several is told by its tag; a struct alone may come without.
            tag = structs[0].tag_field
            options = [
                {**option, "required": [tag]} if each in structs and tag else option
                for option, each in zip(options, kind.types, strict=True)
            ]
        return {"anyOf": options}

    def _reference(self, cls: Any, kind: mi.Type) -> Schema:  # noqa: ANN401
        """The reference to a class, which is described once."""
        name = self._names.get(cls)
        if name is None:
            name = self._names[cls] = self._new_name(cls)
            # Before its parts, which may refer to it.
            self._definitions[name] = {}
            self._definitions[name] |= self._definition(cls, kind, name)
        return {"$ref": f"#/$defs/{name}"}

    def _new_name(self, cls: Any) -> str:  # noqa: ANN401
        plain = getattr(cls, "__name__", None) or getattr(cls, "__origin__", cls).__name__
        name = "".join(each if each.isalnum() and each.isascii() else "_" for each in plain)
        taken = sum(each == name or each.startswith(f"{name}.") for each in self._definitions)
        return f"{name}.{taken + 1}" if taken else name

    def _definition(self, cls: Any, kind: mi.Type, name: str) -> Schema:  # noqa: ANN401
        match kind:
            case mi.EnumType():
                return {"title": name, "enum": [each.value for each in kind.cls]}
            case mi.StructType():
                return {"title": name, **self._struct(kind)}
            case mi.NamedTupleType():
                return {"title": name, **self._row(kind.fields, closed=True)}
            case mi.TypedDictType() | mi.DataclassType():
                return {"title": name, **self._object(kind.fields)}
            case _ if is_model(cls):
                return model_schema(cls, f"#/$defs/{name}")
            case _:
                raise TypeError(
                    f"{name} is no type that JSON is read as: use one of Python's own, a "
                    "dataclass, a TypedDict, a NamedTuple, a msgspec.Struct, a class of attrs or "
                    "a pydantic model"
                )

    def _struct(self, kind: mi.StructType) -> Schema:
        tag = None if kind.tag_field is None else (kind.tag_field, {"enum": [kind.tag]})
        if not kind.array_like:
            return self._object(kind.fields, tag)
        row = self._row(kind.fields, closed=kind.forbid_unknown_fields)
        if tag is not None:
            row["prefixItems"] = [tag[1], *row["prefixItems"]]
            row["minItems"] += 1
            if "maxItems" in row:
                row["maxItems"] += 1
        return row

    def _object(
        self, fields: tuple[mi.Field, ...], tag: tuple[str, Schema] | None = None
    ) -> Schema:
        properties: Schema = {} if tag is None else {tag[0]: tag[1]}
        properties |= {each.encode_name: self._field(each) for each in fields}
        required = [each.encode_name for each in fields if each.required]
        return {"type": "object", "properties": properties, "required": required}

    def _row(self, fields: tuple[mi.Field, ...], *, closed: bool) -> Schema:
        last = max((at for at, each in enumerate(fields) if each.required), default=-1)
        row: Schema = {
            "type": "array",
            "prefixItems": [self._field(each) for each in fields],
            "minItems": last + 1,
        }
        return row | ({"maxItems": len(fields)} if closed else {})

    def _field(self, field: mi.Field) -> Schema:
        schema = self._schema(field.type)
        if field.default is msgspec.NODEFAULT or "$ref" in schema:
            return schema
        try:
            return {**schema, "default": msgspec.to_builtins(field.default, str_keys=True)}
        except (TypeError, ValueError, RecursionError):
            return schema  # It is for readers alone.

    def _collection(self, kind: mi.CollectionType) -> Schema:
        schema: Schema = {"type": "array"}
        if not isinstance(kind.item_type, mi.AnyType):
            schema["items"] = self._schema(kind.item_type)
        if isinstance(kind, mi.SetType | mi.FrozenSetType):
            schema["uniqueItems"] = True
        return schema | _sizes(kind, "Items")

    def _tuple(self, kind: mi.TupleType) -> Schema:
        size = len(kind.item_types)
        schema: Schema = {"type": "array", "minItems": size, "maxItems": size}
        if size:
            schema["prefixItems"] = [self._schema(each) for each in kind.item_types]
        return schema

    def _mapping(self, kind: mi.DictType) -> Schema:
        schema: Schema = {"type": "object"}
        names = self._key(kind.key_type)
        if names:
            schema["propertyNames"] = names
        if not isinstance(kind.value_type, mi.AnyType):
            schema["additionalProperties"] = self._schema(kind.value_type)
        return schema | _sizes(kind, "Properties")

    def _key(self, kind: mi.Type) -> Schema:
        while isinstance(kind, mi.Metadata):
            kind = kind.type
        if isinstance(kind, mi.StrType):
            return _text_rules(kind)
        if not isinstance(kind, mi.AnyType):
            self.is_plain = False
        if isinstance(kind, mi.EnumType):
            return {"enum": [str(each.value) for each in kind.cls]}
        if isinstance(kind, mi.LiteralType):
            return {"enum": [str(each) for each in kind.values]}
        if type(kind) not in _KEYS or (isinstance(kind, mi.IntType) and _bounds(kind)):
            raise TypeError(
                "keys of a dict may be str, int without bounds, UUID, date, an Enum or a Literal, "
                f"not {type(kind).__name__.removesuffix('Type')}"
            )
        return dict(_KEYS[type(kind)])

    #: Types with parts, and no name.
    _PARTS: ClassVar[Mapping[type, Callable[["TypeSchema", Any], Schema]]] = {
        **dict.fromkeys((mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType), _collection),
        mi.TupleType: _tuple,
        mi.DictType: _mapping,
        mi.UnionType: _union,
    }


def _bounds(kind: mi.IntType | mi.FloatType) -> Schema:
    found = {name: getattr(kind, each) for each, name in _BOUNDS.items()}
    return {name: bound for name, bound in found.items() if bound is not None}


def _sizes(kind: Any, unit: str) -> Schema:  # noqa: ANN401, collections, mappings and texts
    found = {f"min{unit}": kind.min_length, f"max{unit}": kind.max_length}
    return {name: size for name, size in found.items() if size is not None}


def _text_rules(kind: mi.StrType) -> Schema:
    rules = _sizes(kind, "Length")
    return rules if kind.pattern is None else {**rules, "pattern": kind.pattern}


def _bytes(kind: mi.BytesType) -> Schema:
    if _sizes(kind, "Length"):
        raise TypeError("a length of bytes cannot be checked, because JSON has them as base64")
    return {"type": "string", "contentEncoding": "base64", "format": "base64"}


def _clock(format_: str, tz: bool | None) -> Schema:
    schema: Schema = {"type": "string", "format": format_}
    if tz is None:
        return schema
    offset: Schema = {"pattern": _OFFSET}
    return schema | (offset if tz else {"not": offset})


#: Types with rules, and no parts.
_RULES: Final[Mapping[type, Callable[[Any], Schema]]] = {
    mi.IntType: lambda kind: {"type": "integer", **_bounds(kind)},
    # Numbers beyond these bounds are JSON, and no float.
    mi.FloatType: lambda kind: {
        "type": "number",
        "minimum": -_FLOAT_MAX,
        "maximum": _FLOAT_MAX,
        **_bounds(kind),
    },
    mi.StrType: lambda kind: {"type": "string", **_text_rules(kind)},
    mi.BytesType: _bytes,
    mi.DateTimeType: lambda kind: _clock("date-time", kind.tz),
    mi.TimeType: lambda kind: _clock("time", kind.tz),
    mi.LiteralType: lambda kind: {"enum": list(kind.values)},
}
