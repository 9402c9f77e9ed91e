"""Expressions in CEL: compiled once, evaluated often, within limits of time and memory.

CEL has no loops but over what it is given, and the library stops an expression after 10,000 turns.
A turn may still search a list of a megabyte, and a text may grow with each use of `replace`. So an
expression is evaluated here only if an upper bound of its cost (`cel_cost`) is small, and else in a
process with limits (`evaluations`). What only reads a field is not evaluated by the library at all.

What can be known without data (syntax, names, the type of the result) is checked when an expression
is compiled; an error of evaluation is a value here, because it is one delivery's.

An expression sees shared values, which are converted for CEL once for all evaluations over the
same `Facts`, and names of its own, whose values are handed over with each evaluation. So a list of
10,000 items, looked at by an expression for each of them, is converted once.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_strings

from headwater.processors.cel_ast import Node, read_tree
from headwater.processors.cel_cost import LOCAL, Cost, cost_of
from headwater.processors.cel_values import (
    NotTaken,
    arranged,
    arrangement_of,
    json_text,
    json_value,
    shown,
    taken,
)
from headwater.processors.evaluations import (
    EvaluationProblem,
    Evaluations,
    ExpressionTask,
    SharedValues,
)
from headwater.processors.nul_texts import Carried, carried, given_back, spells_nul

_PLACE: Final = re.compile(r"<input>:(-?\d+):(-?\d+): (.*)")
#: How the library says that a field or an element is not there.
_MISSING: Final = re.compile(r"NOT_FOUND: Key not found in map|UNKNOWN: Index error: index=")

#: The longest expression: a page. The library alone would take 100,000 characters.
SOURCE_MAX: Final = 10_000
#: The longest list that `map` and `filter` may go over. They copy what they have for each item: a
#: list of 10,000 takes 1.6 GB and six seconds, one of 2,000 takes 70 MB and 0.2 seconds.
COPIED_MAX: Final = 2_000
_COPIES: Final = re.compile(r"\.\s*(?:map|filter)\s*\(")
#: A name, and fields of it; it may begin with a dot, as names do that no macro hides.
_PATH: Final = re.compile(r"(?<![\w.])\.?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
#: An expression that is only a name, or fields of it.
_FIELD: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
#: Doubles a text with every use; nobody needs it in a condition.
_BINDS: Final = re.compile(r"\bcel\s*\.\s*bind\b")

#: An evaluation that the memory of the process, or of its limit, is not enough for.
NO_MEMORY: Final = "expected an evaluation in the memory that there is for it, it needs more"
_ABSENT: Final = object()
NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})
#: Words that cannot be names of an expression's own: those of CEL, and that one.
WORDS: Final = frozenset(
    "as break const continue else false for function if import in let loop namespace null package "
    f"return true var void while {LOCAL}".split()
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


class _Own:
    """The values of an expression's own names, and the name that it asked for last."""

    def __init__(self, values: Mapping[str, Carried]) -> None:
        self.values = values
        self.asked = ""


_own: ContextVar[_Own] = ContextVar("own")


def _own_value(name: str) -> object:
    own = _own.get()
    if name not in own.values:
        raise LookupError(f"undeclared variable {name}: it is known within its fork alone")
    own.asked = name
    return own.values[name].value


def _named(message: str, own: _Own) -> str:
    """A message of the library that names a value by its name, not by where that came from."""
    return message.replace(f"Python function '{_own_value}'", own.asked)


class Names:
    """The names of shared values that expressions may use."""

    def __init__(self, *shared: str) -> None:
        self.shared = frozenset(shared)
        asked = cel.Overload(
            id=LOCAL, return_type=cel.Type.DYN, parameters=[cel.Type.STRING], impl=_own_value
        )
        self.env = cel.NewEnv(
            variables=dict.fromkeys(shared, cel.Type.DYN),
            extensions=[ext_strings.ExtStrings(), ext_bindings.ExtBindings()],
            functions=[cel.FunctionDecl(LOCAL, [asked])],
        )


#: What rules for deliveries are about.
EVENT: Final = Names("event")


class Facts:
    """Shared values that expressions are evaluated over; they are converted when first needed."""

    def __init__(self, values: Mapping[str, Any], names: Names = EVENT) -> None:
        self.values = values
        self.names = names

    @cached_property
    def carried(self) -> Carried | EvaluationProblem:
        """The values as the library takes them."""
        return _carried(self.values)

    @cached_property
    def shared(self) -> SharedValues:
        """The values for an evaluator."""
        return SharedValues(
            b"{}" if isinstance(self.carried, EvaluationProblem) else self.carried.text
        )

    @cached_property
    def activation(self) -> Any:  # noqa: ANN401, of the library
        """The values, converted for the library."""
        carried = self.carried
        return self.names.env.Activation(
            {} if isinstance(carried, EvaluationProblem) else carried.value
        )


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
        if LOCAL in source or _BINDS.search(source):
            raise ExpressionInvalid(f"expected neither cel.bind nor {LOCAL}")
        paths = [tuple(path.split(".")) for path in _PATH.findall(source)]
        self.roots = frozenset(path[0] for path in paths)
        self.names, self.local = names, tuple(local)
        self._own_names = [name for name in local if name in self.roots]
        self._field = _field(source, names.shared.union(local))
        self._costs: dict[tuple[int, int], Cost] = {}
        self._spells_nul = spells_nul(source)
        self._paths = _copied(source, paths, names.shared.union(local))
        opened = [f'cel.bind({name},{LOCAL}("{name}"),' for name in self._own_names]
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

    def evaluate(
        self,
        facts: Facts,
        local: Mapping[str, Any] = NO_VALUES,
        evaluations: Evaluations | None = None,
    ) -> Any | EvaluationProblem:  # noqa: ANN401, any JSON value
        """Return its value, or why there is none.

        Args:
            facts: The shared values.
            local: The values of its own names.
            evaluations: What may still be spent; None is no limit.

        Returns:
            A str, bool, any JSON value, or such as JSON text, as it was compiled to give.
        """
        if self._field or self._arrangement is not None:
            found = self._read(facts, local)
            if found is not _ABSENT:
                return found
        shared = facts.carried
        if isinstance(shared, EvaluationProblem):
            return shared
        own: dict[str, Carried] = {}
        for name in self._own_names:
            if name in local:
                value = _carried(local[name])
                if isinstance(value, EvaluationProblem):
                    return value
                own[name] = value
        if evaluations is not None and not evaluations.admits(self._cost(shared, own)):
            return evaluations.run(self._task(own), facts.shared)
        longer = self._paths and self._longer_than_copied(facts.values, local)
        return longer or self._evaluate(facts, own, shared.had_nul)

    def _task(self, own: Mapping[str, Carried]) -> ExpressionTask:
        values = b",".join(b'"%b":%b' % (name.encode(), own[name].text) for name in own)
        names = tuple(sorted(self.names.shared))
        return ExpressionTask(self.source, self.gives.name, names, self.local, b"{%b}" % values)

    @cached_property
    def _arrangement(self) -> Node | None:
        """The literal of a list or a map that it is, if there are only fields in it."""
        return arrangement_of(self._tree) if self.source.lstrip()[:1] in ("{", "[") else None

    def _read(self, facts: Facts, local: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """What the library would give for fields that are there."""
        try:
            if self._arrangement is not None:
                own = {name: local[name] for name in self._own_names if name in local}
                value = arranged(self._arrangement, {**facts.values, **own})
            else:
                value = taken(self._at(facts, local))
        except NotTaken:
            return _ABSENT
        return value if self.gives is Gives.VALUE else self._given(value)

    def _at(self, facts: Facts, local: Mapping[str, Any]) -> Any:  # noqa: ANN401
        root, *fields = self._field
        values = local if root in self._own_names else facts.values
        at: Any = values.get(root, _ABSENT)
        for field in fields:
            if type(at) is not dict or field not in at:
                raise NotTaken
            at = at[field]
        return at

    def _cost(self, shared: Carried, own: Mapping[str, Carried]) -> Cost:
        """The bound of an evaluation; it is computed once for all data of about the same size."""
        size, items = len(shared.text), shared.items
        for value in own.values():
            size += len(value.text)
            items += value.items
        key = (size.bit_length(), items.bit_length())
        found = self._costs.get(key)
        if found is None:
            plain = self.gives in (Gives.VALUE, Gives.JSON)
            found = cost_of(self._tree, 1 << key[0], 1 << key[1], plain=plain)
            self._costs[key] = found
        return found

    @cached_property
    def _tree(self) -> Node:
        return read_tree(self._compiled.serialize())

    def _evaluate(
        self, facts: Facts, values: Mapping[str, Carried], had_nul: bool
    ) -> Any | EvaluationProblem:  # noqa: ANN401
        own = _Own(values)
        token = _own.set(own)
        try:
            found = self._compiled.eval(facts.activation)
            if found.type() == cel.Type.ERROR:
                message = _named(str(found.value()), own)
                return EvaluationProblem(message, missing=_MISSING.match(message) is not None)
            value = found.plain_value()
            if not (had_nul or any(each.had_nul for each in values.values())):
                return self._given(value)
            if self._spells_nul:
                return EvaluationProblem(
                    "expected an expression that names no NUL, or values without that"
                )
            return self._given(given_back(value))
        # The library's errors have no class of their own.
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            return EvaluationProblem(_named(str(error), own))
        except MemoryError:
            return EvaluationProblem(NO_MEMORY)
        finally:
            _own.reset(token)

    def _given(self, value: Any) -> Any | EvaluationProblem:  # noqa: ANN401
        if self.gives is Gives.JSON:
            return json_text(value)
        if self.gives is Gives.VALUE:
            return json_value(value)
        expected = str if self.gives is Gives.TEXT else bool
        if not isinstance(value, expected):
            return EvaluationProblem(f"expected {self.gives.value}, found {shown(value)}")
        return value

    def _longer_than_copied(
        self, shared: Mapping[str, Any], local: Mapping[str, Any]
    ) -> EvaluationProblem | None:
        for root, *fields in self._paths:
            at, where = local.get(root, shared.get(root)), root
            for field in fields:
                if not isinstance(at, Mapping) or field not in at:
                    break
                at, where = at[field], f"{where}.{field}"
            longest = _longest_list(at)
            if longest > COPIED_MAX:
                return EvaluationProblem(
                    f"expected lists of at most {COPIED_MAX} items for map and filter, "
                    f"found one of {longest} in {where}"
                )
        return None


def _carried(value: Any) -> Carried | EvaluationProblem:  # noqa: ANN401, any JSON value
    try:
        return carried(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return EvaluationProblem(f"expected {error}")


def _field(source: str, known: Collection[str]) -> tuple[str, ...]:
    """The path of an expression that only reads a field of what it knows, else nothing."""
    path = source.strip()
    if _FIELD.fullmatch(path) is None:
        return ()
    names = tuple(path.split("."))
    return names if names[0] in known else ()


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
