"""JSON Schemas of authors' types.

A schema accepts what reading the type accepts. Processes without the author's code can thus refuse
params that do not fit before an instance is created. `msgspec.json.schema` is less precise: it
gives datetimes no format, and keys of mappings no rule.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
from msgspec import inspect as mi

from headwater.streams.authoring.pydantic_models import is_model, model_schema

Schema: TypeAlias = dict[str, Any]

#: Matches texts with a UTC offset.
_OFFSET: Final = r"([Zz]|[+-]\d\d:?\d\d)$"
_FLOAT_MAX: Final = sys.float_info.max
_BOUNDS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
#: Types without constraints.
_FIXED: Final[Mapping[type, Schema]] = {
    mi.AnyType: {},
    mi.NoneType: {"type": "null"},
    mi.BoolType: {"type": "boolean"},
    mi.DateType: {"type": "string", "format": "date"},
    # Excludes years, months and weeks, which msgspec does not read.
    mi.TimeDeltaType: {
        "type": "string",
        "format": "duration",
        "pattern": "^[+-]?[Pp][0-9.]*[Dd]?([Tt].*)?$",
    },
    mi.UUIDType: {"type": "string", "format": "uuid"},
    # A decimal may also be a JSON number.
    mi.DecimalType: {"type": ["string", "number"], "format": "decimal"},
}
#: Keys of mappings. Every key has one spelling, so that no two of them become the same key.
_KEYS: Final[Mapping[type, Schema]] = {
    mi.AnyType: {},
    mi.DateType: {"format": "date"},
    mi.IntType: {"pattern": "^(0|-?[1-9][0-9]*)$", "maxLength": 4_000},
    mi.UUIDType: {"pattern": "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"},
}
#: Types with the values that the JSON parser returns, if this is true of their parts.
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
            TypeError: JSON cannot be read as this type. The message names the part and the reason.
        """
        self._names: dict[Any, str] = {}
        self._definitions: dict[str, Schema] = {}
        #: Whether values are what the JSON parser returns, so that no conversion is needed.
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
        schema = self._schema_of(kind)
        return {**schema, **extra} if extra else schema

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
            raise TypeError(f"{type(kind).__name__.removesuffix('Type')} is not a type for JSON")
        return {} if cls is object else self._reference(cls, kind)

    def _union(self, kind: mi.UnionType) -> Schema:
        structs = [member for member in kind.types if isinstance(member, mi.StructType)]
        options = [self._schema(member) for member in kind.types]
        if len(structs) > 1:
            # Several structs are distinguished by their tags; for a single one it is optional.
            tag = structs[0].tag_field
            options = [
                {**option, "required": [tag]} if member in structs and tag else option
                for option, member in zip(options, kind.types, strict=True)
            ]
        return {"anyOf": options}

    def _reference(self, cls: Any, kind: mi.Type) -> Schema:  # noqa: ANN401
        """Return a reference to a class, and describe the class when it is first seen."""
        name = self._names.get(cls)
        if name is None:
            name = self._names[cls] = self._new_name(cls)
            # Before its parts, which may refer to it.
            self._definitions[name] = {}
            self._definitions[name] |= self._definition(cls, kind, name)
        return {"$ref": f"#/$defs/{name}"}

    def _new_name(self, cls: Any) -> str:  # noqa: ANN401
        plain = getattr(cls, "__name__", None) or getattr(cls, "__origin__", cls).__name__
        name = "".join(
            character if character.isalnum() and character.isascii() else "_" for character in plain
        )
        taken = sum(
            existing == name or existing.startswith(f"{name}.") for existing in self._definitions
        )
        return f"{name}.{taken + 1}" if taken else name

    def _definition(self, cls: Any, kind: mi.Type, name: str) -> Schema:  # noqa: ANN401
        match kind:
            case mi.EnumType():
                return {"title": name, "enum": [member.value for member in kind.cls]}
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
                    f"{name} cannot be read from JSON: use a type of Python's own, a "
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
        properties |= {field.encode_name: self._field(field) for field in fields}
        required = [field.encode_name for field in fields if field.required]
        return {"type": "object", "properties": properties, "required": required}

    def _row(self, fields: tuple[mi.Field, ...], *, closed: bool) -> Schema:
        last = max((index for index, field in enumerate(fields) if field.required), default=-1)
        row: Schema = {
            "type": "array",
            "prefixItems": [self._field(field) for field in fields],
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
            return schema  # The default only documents the field.

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
            schema["prefixItems"] = [self._schema(item) for item in kind.item_types]
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
            return {"enum": [str(member.value) for member in kind.cls]}
        if isinstance(kind, mi.LiteralType):
            return {"enum": [str(value) for value in kind.values]}
        if type(kind) not in _KEYS or (isinstance(kind, mi.IntType) and _bounds(kind)):
            raise TypeError(
                "keys of a dict may be str, int without bounds, UUID, date, an Enum or a Literal, "
                f"not {type(kind).__name__.removesuffix('Type')}"
            )
        return dict(_KEYS[type(kind)])

    #: Types with parts and without a name.
    _PARTS: ClassVar[Mapping[type, Callable[["TypeSchema", Any], Schema]]] = {
        **dict.fromkeys((mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType), _collection),
        mi.TupleType: _tuple,
        mi.DictType: _mapping,
        mi.UnionType: _union,
    }


def _bounds(kind: mi.IntType | mi.FloatType) -> Schema:
    bounds = {name: getattr(kind, attribute) for attribute, name in _BOUNDS.items()}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _sizes(kind: Any, unit: str) -> Schema:  # noqa: ANN401, collections, mappings and texts
    sizes = {f"min{unit}": kind.min_length, f"max{unit}": kind.max_length}
    return {name: size for name, size in sizes.items() if size is not None}


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


#: Types with constraints and without parts.
_RULES: Final[Mapping[type, Callable[[Any], Schema]]] = {
    mi.IntType: lambda kind: {"type": "integer", **_bounds(kind)},
    # Larger numbers are valid JSON but no floats.
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
