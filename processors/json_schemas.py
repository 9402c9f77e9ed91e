"""JSON Schemas: whether a value is what its author said it would be. Nothing outside is read.

The size of a schema is limited when it is compiled. A check is done here only if an upper bound of
its cost is small, else where `evaluations` says. The library collects all errors of a value before
it returns the first, 40 µs each, so they are listed for small values alone.
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
#: Errors that are listed.
_LISTED: Final = 5
_SHOWN: Final = 200
#: To look at a keyword for a value, and to make an error of it.
_KEYWORD_NS: Final = 50
_ERROR_NS: Final = 40_000
#: The most errors that a value may have for all of them to be collected.
_COLLECTED: Final = 2_500

_encode: Final = msgspec.json.Encoder().encode


class SchemaInvalid(ValueError):
    """What is no JSON Schema, or is over a limit; says why."""


class JsonSchema:
    """A schema, compiled once."""

    def __init__(
        self, schema: Mapping[str, Any], formats: Mapping[str, Callable[[str], bool]] | None = None
    ) -> None:
        """Compile a schema.

        Args:
            schema: Any draft, 2020-12 if it names none. Patterns are those that take linear time.
            formats: Formats that a text has to have, by name. All others are annotations.

        Raises:
            SchemaInvalid: It is no schema, or refers to anything outside of itself.
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

    def fault(self, value: object, root: str, evaluations: Evaluations | None = None) -> str | None:
        """Return what is wrong with a value, or None.

        Args:
            value: Any value of JSON.
            root: What the value is called; each error is told with its path.
            evaluations: What may still be spent; None is no limit.
        """
        try:
            if evaluations is None:
                return None if self._validator.is_valid(value) else self._told(value, root)
            text = _text(value)
            if not evaluations.admits(self._check_cost(text)):
                return self._by_task(text, root, evaluations)
            if self._validator.is_valid(value):
                return None
            if not evaluations.admits(self._error_cost(text)):
                return self._by_task(text, root, evaluations)
            return self._told(value, root)
        except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
            return f"{root} cannot be checked: {_first_line(error)}"

    def _by_task(self, text: bytes, root: str, evaluations: Evaluations) -> str | None:
        found = evaluations.run(SchemaTask(self.text, text, root, self._formats))
        if isinstance(found, EvaluationProblem):
            return f"{root} cannot be checked: {found.message}"
        return found if isinstance(found, str) else None

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

    def _told(self, value: object, root: str) -> str:
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
    """An upper bound of the values in a JSON text."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def _line(root: str, error: jsonschema_rs.ValidationError) -> str:
    return f"{_path(root, error.instance_path)}: {_first_line(error)}"


def _path(root: str, path: Iterable[str | int]) -> str:
    return root + "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in path)


def _first_line(error: BaseException) -> str:
    line = getattr(error, "message", str(error)).partition("\n")[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
