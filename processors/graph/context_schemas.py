"""What a schema of a run's state means before the run ends, and keywords without effect.

The state is empty at first, and nodes set one field after the other. So the schema's defaults
initialize it, every change is checked without `required`, and only the end of the run with it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_SCHEMAS: Final = (
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames "
    "then unevaluatedItems unevaluatedProperties"
)
_SCHEMAS_BY_NAME: Final = (
    "$defs definitions dependencies dependentSchemas patternProperties properties"
)
_VALUES: Final = (
    "$anchor $comment $dynamicAnchor $dynamicRef $id $recursiveAnchor $recursiveRef $ref $schema "
    "$vocabulary const contentEncoding contentMediaType default dependentRequired deprecated "
    "description enum examples exclusiveMaximum exclusiveMinimum format id maxContains maxItems "
    "maxLength maxProperties maximum minContains minItems minLength minProperties minimum "
    "multipleOf pattern readOnly required title type uniqueItems writeOnly"
)
_FORMAT_NAMES: Final = (
    "date date-time duration email hostname idn-email idn-hostname ipv4 ipv6 iri iri-reference "
    "json-pointer regex relative-json-pointer time uri uri-reference uri-template uuid"
)
#: Keywords by the form of their value: a schema, a list of schemas, an object of schemas.
_ONE: Final = frozenset(_SCHEMAS.split())
_LISTS: Final = frozenset(["allOf", "anyOf", "items", "oneOf", "prefixItems"])
_MAPS: Final = frozenset(_SCHEMAS_BY_NAME.split())
_KEYWORDS: Final = _ONE | _LISTS | _MAPS | frozenset(_VALUES.split())
_FORMATS: Final = frozenset(_FORMAT_NAMES.split())
#: Keywords that a state may violate until all nodes have set their fields.
_UNFINISHED: Final = frozenset(["dependentRequired", "minProperties", "required"])


def defaults_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that the defaults of a schema's properties make.

    An object without a default of its own is there if one of its properties has a default.
    """
    return _defaults(schema, schema, frozenset())


def _defaults(
    schema: Mapping[str, Any], root: Mapping[str, Any], followed: frozenset[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, part in _mapping(schema.get("properties")).items():
        declared, references = _mapping(part), followed
        reference = declared.get("$ref")
        if "default" not in declared and isinstance(reference, str):
            # A recursive schema would have no end.
            declared = {} if reference in followed else _resolved(reference, root)
            references = followed | {reference}
        if "default" in declared:
            values[name] = declared["default"]
        elif inner := _defaults(declared, root, references):
            values[name] = inner
    return values


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _resolved(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema of the same document."""
    target: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        target = _mapping(target).get(step)
    return _mapping(target)


def without_required(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that a state with missing fields meets, too, at every depth.

    Where a condition depends on missing fields (`not`, `if`), it is left out; one alternative of
    several (`oneOf`) becomes at least one.
    """
    kept = {key: _part_without_required(key, value) for key, value in _kept(schema)}
    return kept | _any_of(schema)


def _kept(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    conditional = {"if", "then", "else"} if _is_unfinished(schema.get("if")) else set[str]()
    for key, value in schema.items():
        if key in _UNFINISHED or key in conditional or (key == "not" and _is_unfinished(value)):
            continue
        if key == "dependencies":
            yield key, {name: part for name, part in value.items() if isinstance(part, Mapping)}
        elif key != "oneOf" or not _is_unfinished(value):
            yield key, value


def _any_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    choices = schema.get("oneOf")
    if not _is_unfinished(choices):
        return {}
    others = schema.get("allOf", [])
    return {
        "allOf": [
            *_part_without_required("allOf", others),
            {"anyOf": _part_without_required("anyOf", choices)},
        ]
    }


def _part_without_required(key: str, value: Any) -> Any:  # noqa: ANN401
    if key in _LISTS and isinstance(value, list):
        return [_part_without_required("if", part) for part in value]
    if key in _MAPS and isinstance(value, Mapping):
        return {name: _part_without_required("if", part) for name, part in value.items()}
    return without_required(value) if key in _ONE and isinstance(value, Mapping) else value


def _is_unfinished(value: object) -> bool:
    """Return whether a schema, or a list of them, has keywords that depend on missing fields."""
    if isinstance(value, list):
        return any(map(_is_unfinished, value))
    if not isinstance(value, Mapping):
        return False
    return not _UNFINISHED.isdisjoint(value) or any(map(_is_unfinished, value.values()))


def without_effect(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of keywords and formats that are not known, and a message."""
    for key, value in schema.items():
        where = f"{path}.{key}"
        if key not in _KEYWORDS and not key.startswith("x-"):
            yield where, f"expected a keyword of JSON Schema, found {key!r:.80}"
        elif key == "format" and isinstance(value, str) and value not in _FORMATS:
            yield where, f"expected a format of JSON Schema, found {value!r:.80}"
        for step, part in _subschemas(key, value):
            if isinstance(part, Mapping):
                yield from without_effect(part, f"{where}{step}")


def _subschemas(key: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if key in _MAPS and isinstance(value, Mapping):
        yield from ((f".{name}", part) for name, part in value.items())
    elif key in _LISTS and isinstance(value, list):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif key in _ONE:
        yield "", value
