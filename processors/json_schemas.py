"""Validate values against JSON Schemas. References to anything outside a schema are not followed.

The size of a schema is limited when it is compiled. A check is done in this process only if an
upper bound of its cost is small, otherwise by `evaluations`. The library collects all errors of a
value before it returns the first, 40 µs per error, so they are listed for small values only.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import jsonschema_rs
import msgspec

from headwater.processors.cel_cost import Cost
from headwater.processors.evaluations import EvaluationProblem, Evaluations, SchemaTask
from headwater.processors.schema_cost import OverLimit, cost_of_schema

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
