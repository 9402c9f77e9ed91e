"""Expressions in CEL: compiled once, evaluated often, always ending.

CEL has no loops but over what it is given, and the library stops an expression that takes too many
turns. What can be known without data (syntax, names, the type of the result) is checked when an
expression is compiled; an error of evaluation is a value here, because it is one delivery's.

An expression sees shared values, which are converted for CEL once for all evaluations over the
same `Facts`, and names of its own, whose values are handed over with each evaluation. So a list of
10,000 items, looked at by an expression for each of them, is converted once.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgspec
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_strings

from headwater.processors.nul_texts import carried, given_back, spells_nul
from headwater.schemas.history import NESTING_MAX

_PLACE: Final = re.compile(r"<input>:(-?\d+):(-?\d+): (.*)")
#: How the library says that a field or an element is not there.
_MISSING: Final = re.compile(r"NOT_FOUND: Key not found in map|UNKNOWN: Index error: index=")
_SHOWN: Final = 120

#: The longest expression: a page. The library alone would take 100,000 characters.
SOURCE_MAX: Final = 10_000
#: The longest list that `map` and `filter` may go over. They copy what they have for each item: a
#: list of 10,000 takes 1.6 GB and six seconds, one of 2,000 takes 70 MB and 0.2 seconds.
COPIED_MAX: Final = 2_000
_COPIES: Final = re.compile(r"\.\s*(?:map|filter)\s*\(")
#: A name, and fields of it; it may begin with a dot, as names do that no macro hides.
_PATH: Final = re.compile(r"(?<![\w.])\.?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
#: Doubles a text with every use; nobody needs it in a condition.
_BINDS: Final = re.compile(r"\bcel\s*\.\s*bind\b")

#: How the values of an expression's own names are asked for, within CEL.
_LOCAL: Final = "headwater_local"
NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})
#: Words that cannot be names of an expression's own: those of CEL, and that one.
WORDS: Final = frozenset(
    "as break const continue else false for function if import in let loop namespace null package "
    f"return true var void while {_LOCAL}".split()
)


class Gives(Enum):
    """What an expression has to give."""

    TEXT = "a text"
    CONDITION = "true or false"
    JSON = "a JSON value"
    #: The value itself, where JSON is its text.
    VALUE = "a value of JSON"


_TYPES: Final = {Gives.TEXT: cel.Type.STRING, Gives.CONDITION: cel.Type.BOOL}


class ExpressionInvalid(ValueError):
    """An expression that cannot be compiled; says where and why."""


class Fault(msgspec.Struct, frozen=True):
    """Why an expression has no value for some facts; `missing`: they lack what it names."""

    message: str
    missing: bool = False


class _Own:
    """The values of an expression's own names: which it asked for, and whether one had NUL."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.asked = ""
        self.had_nul = False


_own: ContextVar[_Own] = ContextVar("own")


def _own_value(name: str) -> object:
    own = _own.get()
    if name not in own.values:
        raise LookupError(f"undeclared variable {name}: it is known within its fork alone")
    own.asked = name
    value, had_nul = carried(own.values[name])
    own.had_nul |= had_nul
    return value


def _named(message: str, own: _Own) -> str:
    """A message of the library that names a value by its name, not by where that came from."""
    return message.replace(f"Python function '{_own_value}'", own.asked)


class Names:
    """The names of shared values that expressions may use."""

    def __init__(self, *shared: str) -> None:
        self.shared = frozenset(shared)
        asked = cel.Overload(
            id=_LOCAL, return_type=cel.Type.DYN, parameters=[cel.Type.STRING], impl=_own_value
        )
        self.env = cel.NewEnv(
            variables=dict.fromkeys(shared, cel.Type.DYN),
            extensions=[ext_strings.ExtStrings(), ext_bindings.ExtBindings()],
            functions=[cel.FunctionDecl(_LOCAL, [asked])],
        )


#: What rules for deliveries are about.
EVENT: Final = Names("event")


class Facts:
    """Shared values that expressions are evaluated over; made once, as to convert them costs."""

    def __init__(self, values: Mapping[str, Any], names: Names = EVENT) -> None:
        self.values = values
        self.fault: Fault | None = None
        self.had_nul = False
        try:
            values, self.had_nul = carried(values)
        except ValueError as error:
            self.fault = Fault(f"expected no {error}")
        self.activation = names.env.Activation(values)


class Expression:
    """A compiled expression."""

    def __init__(
        self, source: str, gives: Gives, names: Names = EVENT, local: Collection[str] = ()
    ) -> None:
        """Compiles.

        Shape:  local are the names whose values come with each evaluation.
        Errors: ExpressionInvalid.
        """
        self.source = source
        self.gives = gives
        if len(source) > SOURCE_MAX:
            raise ExpressionInvalid(
                f"expected at most {SOURCE_MAX} characters, found {len(source)}: over the limit"
            )
        if _LOCAL in source or _BINDS.search(source):
            raise ExpressionInvalid(f"expected neither cel.bind nor {_LOCAL}")
        paths = [tuple(path.split(".")) for path in _PATH.findall(source)]
        self.roots = frozenset(path[0] for path in paths)
        self._spells_nul = spells_nul(source)
        self._paths = _copied(source, paths, names.shared.union(local))
        opened = [f'cel.bind({name},{_LOCAL}("{name}"),' for name in local if name in self.roots]
        before = "".join(opened)
        # What closes them is on a line of its own if the expression may end with a comment.
        after = ("\n" if opened and "//" in source else "") + ")" * len(opened)
        try:
            self._compiled = names.env.compile(f"{before}{source}{after}")
        except RuntimeError as error:
            raise ExpressionInvalid(_where(str(error), len(before))) from None
        found = self._compiled.return_type()
        expected = _TYPES.get(gives, found)
        if found not in (expected, cel.Type.DYN):
            raise ExpressionInvalid(
                f"expected an expression that gives {gives.value}, found {found.name().lower()}"
            )

    def evaluate(self, facts: Facts, local: Mapping[str, Any] = NO_VALUES) -> Any | Fault:  # noqa: ANN401, any JSON value
        """Its value, or why there is none.

        Shape:  a str, bool, any JSON value, or such as JSON text, as it was compiled to give.
        """
        fault = facts.fault or (self._paths and self._longer_than_copied(facts.values, local))
        if fault:
            return fault
        own = _Own(local)
        token = _own.set(own)
        try:
            found = self._compiled.eval(facts.activation)
        # The library's errors have no class of their own.
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            return Fault(_named(str(error), own))
        finally:
            _own.reset(token)
        if found.type() == cel.Type.ERROR:
            message = _named(str(found.value()), own)
            return Fault(message, missing=_MISSING.match(message) is not None)
        value = found.plain_value()
        if not (facts.had_nul or own.had_nul):
            return self._given(value)
        if self._spells_nul:
            return Fault("expected an expression that names no NUL, or values without that")
        return self._given(given_back(value))

    def _given(self, value: Any) -> Any | Fault:  # noqa: ANN401
        if self.gives is Gives.JSON:
            return _json(value)
        if self.gives is Gives.VALUE:
            return _json_value(value)
        expected = str if self.gives is Gives.TEXT else bool
        if not isinstance(value, expected):
            return Fault(f"expected {self.gives.value}, found {_shown(value)}")
        return value

    def _longer_than_copied(
        self, shared: Mapping[str, Any], local: Mapping[str, Any]
    ) -> Fault | None:
        for root, *fields in self._paths:
            at, where = local.get(root, shared.get(root)), root
            for field in fields:
                if not isinstance(at, Mapping) or field not in at:
                    break
                at, where = at[field], f"{where}.{field}"
            longest = _longest_list(at)
            if longest > COPIED_MAX:
                return Fault(
                    f"expected lists of at most {COPIED_MAX} items for map and filter, "
                    f"found one of {longest} in {where}"
                )
        return None


def _longest_list(value: object) -> int:
    longest, left = 0, [value]
    while left:
        at = left.pop()
        if isinstance(at, list):
            longest = max(longest, len(at))
            left.extend(at)
        elif isinstance(at, Mapping):
            left.extend(at.values())
    return longest


def _copied(
    source: str, paths: list[tuple[str, ...]], known: Iterable[str]
) -> set[tuple[str, ...]]:
    """The paths of what `map` and `filter` may go over.

    Shape:  of each the value itself, if all of them have one by a path; else all that is named.
    """
    macros = len(_COPIES.findall(source))
    over = [path for path in paths if path[-1] in ("map", "filter") and path[0] in known]
    return set(over if len(over) == macros else paths)


def _where(message: str, before: int) -> str:
    found = _PLACE.search(message)
    if found is None:
        return message.splitlines()[0]
    line, column, why = int(found[1]), int(found[2]), found[3]
    if line == 1:
        column -= before
    return f"line {line}, column {column}: {why}" if line > 0 else why


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


def _json_value(value: object) -> object:
    try:
        return _plain(value)
    except (TypeError, ValueError) as error:
        return Fault(f"expected a value of JSON: {error}")


def _plain(value: object, levels: int = NESTING_MAX) -> object:
    if levels == 0 and isinstance(value, list | dict):
        # A loop that wraps what it has in one list more would go on until Python gives up.
        raise ValueError(f"more than {NESTING_MAX} levels of lists and maps")
    if isinstance(value, list):
        return [_plain(each, levels - 1) for each in value]
    if isinstance(value, dict):
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            raise TypeError(f"expected texts as keys, found {_shown(strange)}")
        # A map of the evaluator has no order, and is to be the same text in every process.
        return {key: _plain(value[key], levels - 1) for key in sorted(value)}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number of JSON")
    return value if isinstance(value, str | int | float | None) else _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} is no JSON; convert it with string(...)")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
