"""Validate values against JSON Schemas, at a cost that is bounded by the size of the schema.

A schema of 3 kB in which every level refers twice to the next has a trillion subschemas, and
checking a number with it takes days. So the expanded size is computed, and limited, before a schema
is compiled. References to anything outside a schema are not followed.

A check is done in this process only if an upper bound of its cost is small, otherwise by
`evaluations`. The library collects all errors of a value before it returns the first, 40 µs per
error, so they are listed for small values only.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from headwater.processors.cel_cost import Cost
from headwater.processors.evaluations import EvaluationProblem, Evaluations, SchemaTask

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
#: Keywords with errors that contain the errors of all alternatives.
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


#: Represents a schema that is not resolved.
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
            weight += _count_values(schema.get(name))
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


def _count_values(value: object) -> int:
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


# -- validation

#: Characters of a schema as JSON.
SCHEMA_MAX: Final = 256 * 1024
#: Compiled size of one pattern, in bytes.
_PATTERN_BYTES: Final = 2 * 1024 * 1024
#: Number of errors that are listed.
_LISTED: Final = 5
_SHOWN: Final = 200
#: Cost of evaluating a keyword for a value, and of creating an error, in ns.
_KEYWORD_NS: Final = 50
_ERROR_NS: Final = 40_000
#: Largest number of possible errors for which all are collected.
_COLLECTED: Final = 2_500

_encode: Final = msgspec.json.Encoder().encode


class SchemaInvalid(ValueError):
    """A text is not a JSON Schema, or exceeds a limit; the message has the reason."""


class JsonSchema:
    """A compiled schema."""

    def __init__(
        self, schema: Mapping[str, Any], formats: Mapping[str, Callable[[str], bool]] | None = None
    ) -> None:
        """Compile a schema.

        Args:
            schema: Any draft, 2020-12 if it names none. Only patterns that take linear time.
            formats: Formats that are checked, by name. All others are annotations.

        Raises:
            SchemaInvalid: It is not a schema, or refers to something outside itself.
        """
        try:
            self.text = json.dumps(schema).encode()
            if len(self.text) > SCHEMA_MAX:
                raise SchemaInvalid(
                    f"expected a JSON Schema of at most {SCHEMA_MAX} characters, "
                    f"found {len(self.text)}"
                )
            self._cost = cost_of_schema(schema)
            self._formats = formats is not None
            options = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES)
            self._validator = jsonschema_rs.validator_for(
                dict(schema),
                offline=True,
                formats=None if formats is None else dict(formats),
                validate_formats=formats is not None,
                pattern_options=options,
            )
        except OverLimit as error:
            raise SchemaInvalid(str(error)) from None
        except (jsonschema_rs.ValidationError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, SchemaInvalid):
                raise
            raise SchemaInvalid(f"expected a JSON Schema: {_first_line(error)}") from None

    def problem(
        self, value: object, root: str, evaluations: Evaluations | None = None
    ) -> str | None:
        """Return what is wrong with a value, or None.

        Args:
            value: Any value of JSON.
            root: Name of the value; every error is reported with its path.
            evaluations: Remaining evaluation budget; None for no limit.
        """
        try:
            if evaluations is None:
                return None if self._validator.is_valid(value) else self._described(value, root)
            text = _text(value)
            if not evaluations.admits(self._check_cost(text)):
                return self._by_task(text, root, evaluations)
            if self._validator.is_valid(value):
                return None
            if not evaluations.admits(self._error_cost(text)):
                return self._by_task(text, root, evaluations)
            return self._described(value, root)
        except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
            return f"{root} cannot be checked: {_first_line(error)}"

    def _by_task(self, text: bytes, root: str, evaluations: Evaluations) -> str | None:
        result = evaluations.run(SchemaTask(self.text, text, root, self._formats))
        if isinstance(result, EvaluationProblem):
            return f"{root} cannot be checked: {result.message}"
        return result if isinstance(result, str) else None

    def _check_cost(self, text: bytes) -> Cost:
        cost = self._cost
        ns = cost.weight * (_KEYWORD_NS * _values(text) + 2 * len(text))
        ns += cost.patterns * (100 + 2 * len(text))
        return Cost(float("inf") if cost.unbounded else ns, ns)

    def _errors(self, text: bytes) -> float:
        return self._cost.weight * _values(text)

    def _error_cost(self, text: bytes) -> Cost:
        errors = min(self._errors(text), _COLLECTED)
        if self._cost.alternatives:
            errors = self._errors(text)
        return Cost(_ERROR_NS * errors, 1_000 * errors)

    def _described(self, value: object, root: str) -> str:
        if self._errors(_text(value)) <= _COLLECTED:
            errors = self._validator.iter_errors(value)
            lines = [_line(root, error) for error in islice(errors, _LISTED)]
            more = sum(1 for _ in errors)
            return "; ".join(lines) + (f"; and {more} more" if more else "")
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return f"{_line(root, error)}; others may follow"
        return f"{root} is not valid"


def _text(value: object) -> bytes:
    try:
        return _encode(value)
    except OverflowError:
        return json.dumps(value).encode()  # An integer beyond 64 bits.


def _values(text: bytes) -> int:
    """Return an upper bound of the number of values in a JSON text."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def _line(root: str, error: jsonschema_rs.ValidationError) -> str:
    return f"{_path(root, error.instance_path)}: {_first_line(error)}"


def _path(root: str, path: Iterable[str | int]) -> str:
    return root + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _first_line(error: BaseException) -> str:
    line = getattr(error, "message", str(error)).partition("\n")[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
