"""How large a JSON Schema is once its references are expanded, and what a check with it may cost.

A schema of 3 kB in which each level refers twice to the next has a trillion subschemas, and to
check a number with it takes days. So the expanded size is counted before a schema is compiled.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

#: Subschemas of a schema, a referenced one counted for each way to it.
SUBSCHEMAS_MAX: Final = 10_000
#: Sizes of all patterns together: characters times repetitions, more for classes of Unicode. A
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
#: What gives errors that hold the errors of all alternatives.
_ALTERNATIVES: Final = frozenset(["anyOf", "oneOf", "not", "contains", "propertyNames"])
#: What makes the cost of a check hard to bound.
_UNBOUNDED: Final = frozenset(
    ["$dynamicRef", "$recursiveRef", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"]
)
_REPEATED: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_CLASSES: Final = re.compile(r"\\[pP]|\(\?|\[\^")
_CLASS_STATES: Final = 300
#: A format, which is checked in Python, in comparison with other keywords.
_FORMAT: Final = 100
#: `multipleOf` a fraction, in comparison with other keywords.
_FRACTION: Final = 500


class OverLimit(ValueError):
    """A schema that is larger than one may be."""


class SchemaCost(NamedTuple):
    """What decides the time that checks of a value take."""

    subschemas: float
    #: Keywords that are looked at for each value, of all subschemas.
    weight: float
    #: Sizes of patterns.
    patterns: float
    #: Whether an error may hold other errors.
    alternatives: bool
    #: Whether the others are no bound.
    unbounded: bool


#: In place of a schema that is not looked for.
_ELSEWHERE: Final = {"$dynamicRef": ""}
_NOTHING: Final = SchemaCost(0, 0, 0, alternatives=False, unbounded=False)


def cost_of_schema(schema: Mapping[str, Any]) -> SchemaCost:
    """Count what a schema comes to.

    Raises:
        OverLimit: It has more subschemas or patterns than it may, or they are nested too deep.
    """
    try:
        return _Count(schema).of(schema)
    except RecursionError:
        raise OverLimit("expected references of a few levels, found too many") from None


def pattern_size(pattern: str) -> float:
    """Estimate the size of a compiled pattern in states."""
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
            # One that is within itself follows the data; how often, nobody knows before.
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
        found = [schema.get("pattern"), *_mapping(schema.get("patternProperties"))]
        sizes = {each: pattern_size(each) for each in found if isinstance(each, str)}
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
            found = schema.get(name)
            yield from found if isinstance(found, list) else ()
        for name in _MAPS:
            yield from _mapping(schema.get(name)).values()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield self._resolved(reference)

    def _resolved(self, reference: str) -> object:
        at: object = self._root
        if reference != "#" and not reference.startswith("#/"):
            return _ELSEWHERE  # An anchor, or a schema that the library brings.
        for part in reference.split("/")[1:]:
            step = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, Mapping) and step in at:
                at = at[step]
            elif isinstance(at, list) and step.isdecimal() and int(step[:9]) < len(at):
                at = at[int(step[:9])]
            else:
                return None  # The library refuses it.
        return at


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _values(value: object) -> int:
    """How many values are in a value of JSON."""
    count, left = 0, [value]
    while left:
        at = left.pop()
        count += 1
        if isinstance(at, list):
            left.extend(at)
        elif isinstance(at, Mapping):
            left.extend(at.values())
    return count
