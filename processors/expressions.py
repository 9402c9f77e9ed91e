"""Expressions in CEL over one variable, `event`: compiled once, evaluated often, always ending.

CEL has no loops but over what it is given, and the library stops an expression that takes too many
turns. What can be known without data (syntax, names, the type of the result) is checked when an
expression is compiled; an error of evaluation is a value here, because it is one delivery's.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec
from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

_ENV: Final = cel.NewEnv(
    variables={"event": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)},
    extensions=[ext_strings.ExtStrings()],
)
_PLACE: Final = re.compile(r"<input>:(-?\d+):(-?\d+): (.*)")
#: How the library says that a field or an element is not there.
_MISSING: Final = re.compile(r"Key not found in map|Index error: ")
_SHOWN: Final = 120


class Gives(Enum):
    """What an expression has to give."""

    TEXT = "a text"
    CONDITION = "true or false"
    JSON = "a JSON value"


_TYPES: Final = {Gives.TEXT: cel.Type.STRING, Gives.CONDITION: cel.Type.BOOL}


class ExpressionInvalid(ValueError):
    """An expression that cannot be compiled; says where and why."""


class Fault(msgspec.Struct, frozen=True):
    """Why an expression has no value for some facts; `missing`: they lack what it names."""

    message: str
    missing: bool = False


class Facts:
    """What expressions are evaluated over; made once for all of them, as that costs most."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        self.activation = _ENV.Activation({"event": event})


class Expression:
    """A compiled expression."""

    def __init__(self, source: str, gives: Gives) -> None:
        """Compiles.

        Errors: ExpressionInvalid.
        """
        self.source = source
        self.gives = gives
        try:
            self._compiled = _ENV.compile(source)
        except RuntimeError as error:
            raise ExpressionInvalid(_where(str(error))) from None
        found = self._compiled.return_type()
        expected = _TYPES.get(gives, found)
        if found not in (expected, cel.Type.DYN):
            raise ExpressionInvalid(
                f"expected an expression that gives {gives.value}, found {found.name().lower()}"
            )

    def evaluate(self, facts: Facts) -> Any | Fault:  # noqa: ANN401, any JSON value
        """Its value, or why there is none.

        Shape:  a str, bool, or any JSON value as JSON text, as it was compiled to give.
        """
        try:
            found = self._compiled.eval(facts.activation)
        # The library's errors have no class of their own.
        except (RuntimeError, ValueError, TypeError) as error:
            return Fault(str(error))
        if found.type() == cel.Type.ERROR:
            message = str(found.value())
            return Fault(message, missing=_MISSING.search(message) is not None)
        value = found.plain_value()
        if self.gives is Gives.JSON:
            return _json(value)
        expected = str if self.gives is Gives.TEXT else bool
        if not isinstance(value, expected):
            return Fault(f"expected {self.gives.value}, found {_shown(value)}")
        return value


def _where(message: str) -> str:
    found = _PLACE.search(message)
    if found is None:
        return message.splitlines()[0]
    line, column, why = found.groups()
    return f"line {line}, column {column}: {why}" if int(line) > 0 else why


def _json(value: Any) -> str | Fault:  # noqa: ANN401
    try:
        # Sorted: a map of the evaluator has no order, and the same has to be the same text.
        return json.dumps(
            value,
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
            sort_keys=True,
            default=_as_text,
        )
    except (TypeError, ValueError, RecursionError) as error:
        return Fault(f"expected a JSON value, found {_shown(value)}: {error}")


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} is no JSON; convert it with string(...)")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
