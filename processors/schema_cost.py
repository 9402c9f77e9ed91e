"""Size of a JSON Schema with expanded references, and the cost of checks with it.

A schema of 3 kB in which each level refers twice to the next has a trillion subschemas, and
checking a number with it takes days. So the expanded size is computed before a schema is compiled.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

#: Subschemas of a schema; a referenced one counts once per path to it.
SUBSCHEMAS_MAX: Final = 10_000
#: Total size of all patterns: characters times repetitions, more for classes of Unicode. A
#: million takes about 40 ms to compile.
PATTERNS_MAX: Final = 4_000_000

_ONE: Final = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
]
_LISTS: Final = ["allOf", "anyOf", "oneOf", "prefixItems"]
_MAPS: Final = ["properties", "patternProperties", "dependentSchemas", "dependencies"]
#: Keywords whose errors contain the errors of all alternatives.
_ALTERNATIVES: Final = frozenset(["anyOf", "oneOf", "not", "contains", "propertyNames"])
#: Keywords that make the cost of a check hard to bound.
_UNBOUNDED: Final = frozenset(
    ["$dynamicRef", "$recursiveRef", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"]
)
_REPEATED: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_CLASSES: Final = re.compile(r"\\[pP]|\(\?|\[\^")
_CLASS_STATES: Final = 300
#: Weight of a format, which is checked in Python, relative to other keywords.
_FORMAT: Final = 100
#: Weight of `multipleOf` with a fraction, relative to other keywords.
_FRACTION: Final = 500


class OverLimit(ValueError):
    """A schema exceeds the maximum size."""


class SchemaCost(NamedTuple):
    """What determines the time of checking a value."""

    subschemas: float
    #: Keywords that are evaluated per value, in all subschemas.
    weight: float
    #: Sizes of patterns.
    patterns: float
    #: Whether an error may contain other errors.
    alternatives: bool
    #: Whether the other fields are not upper bounds.
    unbounded: bool


#: Stands for a schema that is not resolved.
_ELSEWHERE: Final = {"$dynamicRef": ""}
_NOTHING: Final = SchemaCost(0, 0, 0, alternatives=False, unbounded=False)


def cost_of_schema(schema: Mapping[str, Any]) -> SchemaCost:
    """Compute the cost of a schema.

    Raises:
        OverLimit: It has too many subschemas or patterns, or they are nested too deep.
    """
    try:
        return _Count(schema).of(schema)
    except RecursionError:
        raise OverLimit("expected references of a few levels, found too many") from None


def pattern_size(pattern: str) -> float:
    """Estimate the size of a compiled pattern, in states."""
    size = float(len(pattern))
    for low, high in _REPEATED.findall(pattern):
        size *= max(int(low[:6]), int(high[:6] or 0), 1)
    return size * _CLASS_STATES if _CLASSES.search(pattern) else size


class _Count:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, SchemaCost | None] = {}
        self._patterns: dict[str, float] = {}

    def of(self, schema: object) -> SchemaCost:
        if not isinstance(schema, Mapping):
            return _NOTHING
        key = id(schema)
        if key in self._known:
            # The number of evaluations of a recursive schema depends on the data.
            return self._known[key] or _NOTHING._replace(unbounded=True)
        self._known[key] = None
        total = self._own(schema)
        for inner in self._inner(schema):
            cost = self.of(inner)
            total = SchemaCost(
                total.subschemas + cost.subschemas,
                total.weight + cost.weight,
                total.patterns + cost.patterns,
                total.alternatives or cost.alternatives,
                total.unbounded or cost.unbounded,
            )
        if total.subschemas > SUBSCHEMAS_MAX:
            raise OverLimit(
                f"expected at most {SUBSCHEMAS_MAX} subschemas with references expanded, found more"
            )
        self._known[key] = total
        return total

    def _own(self, schema: Mapping[str, Any]) -> SchemaCost:
        weight = float(len(schema))
        for name in ("enum", "const", "required", "type"):
            weight += _values(schema.get(name))
        if isinstance(schema.get("multipleOf"), float):
            weight += _FRACTION
        if "format" in schema:
            weight += _FORMAT
        patterns = self._sizes(schema)
        nested_id = schema is not self._root and ("$id" in schema or "id" in schema)
        unbounded = nested_id or not _UNBOUNDED.isdisjoint(schema)
        return SchemaCost(1, weight, patterns, not _ALTERNATIVES.isdisjoint(schema), unbounded)

    def _sizes(self, schema: Mapping[str, Any]) -> float:
        values = [schema.get("pattern"), *_mapping(schema.get("patternProperties"))]
        sizes = {value: pattern_size(value) for value in values if isinstance(value, str)}
        self._patterns.update(sizes)
        if sizes and sum(self._patterns.values()) > PATTERNS_MAX:
            raise OverLimit(
                "expected fewer patterns, or less repeated ones: compiled, all of them together "
                "would be over the limit"
            )
        return sum(sizes.values())

    def _inner(self, schema: Mapping[str, Any]) -> Iterator[object]:
        for name in _ONE:
            yield schema.get(name)
        items = schema.get("items")
        yield from items if isinstance(items, list) else [items]
        for name in _LISTS:
            schemas = schema.get(name)
            yield from schemas if isinstance(schemas, list) else ()
        for name in _MAPS:
            yield from _mapping(schema.get(name)).values()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield self._resolved(reference)

    def _resolved(self, reference: str) -> object:
        current: object = self._root
        if reference != "#" and not reference.startswith("#/"):
            return _ELSEWHERE  # An anchor, or a schema that is part of the library.
        for part in reference.split("/")[1:]:
            step = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(current, Mapping) and step in current:
                current = current[step]
            elif isinstance(current, list) and step.isdecimal() and int(step[:9]) < len(current):
                current = current[int(step[:9])]
            else:
                return None  # The library rejects it.
        return current


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _values(value: object) -> int:
    """Return the number of values in a JSON value."""
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        count += 1
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, Mapping):
            pending.extend(item.values())
    return count
