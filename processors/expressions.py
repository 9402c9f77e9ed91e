"""CEL expressions: compiled once, evaluated often, within limits of time and memory.

CEL loops only over its input, and the library stops an expression after 10,000 iterations. An
iteration may still search a list of a megabyte, and a text may grow with every use of `replace`.
So an expression is evaluated here only if an upper bound of its cost (`cel_cost`) is small, and
otherwise in a process with limits (`evaluations`). An expression that only reads a field is not
evaluated by the library at all.

Everything that is known without data (syntax, names, the type of the result) is checked at
compilation. An evaluation error is a return value, because it concerns only one delivery.

An expression sees shared values, which are converted for CEL once for all evaluations over the
same `ExpressionValues`, and local names with values that are passed with every evaluation. So a
list of 10,000 items is converted once, even if an expression is evaluated for every item.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from cel_expr_python import cel

from headwater.processors.cel_ast import Node, read_tree, write_tree
from headwater.processors.cel_cost import LOCAL, Cost, cost_of, cost_of_parts
from headwater.processors.cel_functions import new_environment
from headwater.processors.cel_parts import (
    PartEvaluator,
    evaluations_of,
    has_parts,
    names_in,
    rewritten,
    with_local,
    without_local,
)
from headwater.processors.cel_sources import clear_message, error_at_position, with_quoted_fields
from headwater.processors.cel_values import (
    CelValue,
    NeedsLibrary,
    canonical_copy,
    encode_for_cel,
    evaluate_literal,
    excerpt,
    json_text,
    json_value,
    literal_of,
    restore_nul,
    spells_nul,
)
from headwater.processors.evaluations import (
    EvaluationProblem,
    Evaluations,
    ExpressionTask,
    SharedValues,
)

#: How the library reports that a field or an element does not exist.
_MISSING: Final = re.compile(r"NOT_FOUND: Key not found in map|UNKNOWN: Index error: index=")

#: The longest expression: a page. The library by itself would accept 100,000 characters.
SOURCE_MAX: Final = 10_000
#: The longest list for `map` and `filter`. They copy their input for every item: a list of 10,000
#: takes 1.6 GB and six seconds, one of 2,000 takes 70 MB and 0.2 seconds.
COPIED_MAX: Final = 2_000
_COPIES: Final = re.compile(r"\.\s*(?:map|filter)\s*\(")
#: A name and fields of it; it may begin with a dot, as names do that no macro shadows.
_PATH: Final = re.compile(r"(?<![\w.])\.?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
#: An expression that is only a name, or fields of it.
_FIELD: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
#: Macros that are changed in the tree of an expression: see `cel_parts`.
_REWRITTEN: Final = re.compile(r"\b(?:has|all|exists|exists_one|map|filter)\s*\(")
#: Doubles a text with every use, and is not needed in conditions.
_BINDS: Final = re.compile(r"\bcel\s*\.\s*bind\b")

#: Message of an evaluation that exceeds the memory of the process or its limit.
NO_MEMORY: Final = "expected an evaluation in the memory that there is for it, it needs more"
_ABSENT: Final = object()
NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})
#: Words that cannot be local names: the reserved words of CEL, and LOCAL.
WORDS: Final = frozenset(
    "as break const continue else false for function if import in let loop namespace null package "
    f"return true var void while {LOCAL}".split()
)


class ResultKind(Enum):
    """Kind of an expression's result."""

    TEXT = "a text"
    CONDITION = "true or false"
    JSON = "a JSON value"
    #: The value itself, where JSON is its text.
    VALUE = "a value of JSON"


_PLAIN_KINDS: Final = (ResultKind.VALUE, ResultKind.JSON)
#: Beginning of the name of the type of `input.?a`.
_OPTIONAL: Final = "optional_type"
_TYPES: Final = {ResultKind.TEXT: cel.Type.STRING, ResultKind.CONDITION: cel.Type.BOOL}


class ExpressionInvalid(ValueError):
    """An expression that cannot be compiled; the message has the position and the reason."""


class _LocalValues:
    """Values of an expression's local names, and the name that was read last."""

    def __init__(self, values: Mapping[str, CelValue]) -> None:
        self.values = values
        self.last_read = ""


_local_values: ContextVar[_LocalValues] = ContextVar("local_values")


def _local_value(name: str) -> object:
    current = _local_values.get()
    if name not in current.values:
        raise LookupError(f"undeclared variable {name}: it is known within its fork alone")
    current.last_read = name
    return current.values[name].value


def _with_name(message: str, local: _LocalValues) -> str:
    """Return a message of the library with the name of a value instead of the function's name."""
    return clear_message(message).replace(f"Python function '{_local_value}'", local.last_read)


class Names:
    """Names of shared values that expressions may use."""

    def __init__(self, *shared: str) -> None:
        self.shared = frozenset(shared)
        overload = cel.Overload(
            id=LOCAL, return_type=cel.Type.DYN, parameters=[cel.Type.STRING], impl=_local_value
        )
        self.env = new_environment(shared, [cel.FunctionDecl(LOCAL, [overload])])


#: The names in rules for deliveries.
EVENT: Final = Names("event")


class ExpressionValues:
    """Shared values for expressions; they are converted when they are first needed."""

    def __init__(self, values: Mapping[str, Any], names: Names = EVENT) -> None:
        self.values = values
        self.names = names

    @cached_property
    def converted(self) -> CelValue | EvaluationProblem:
        """The values for the library, or why they cannot be converted."""
        return _converted(self.values)

    @cached_property
    def shared(self) -> SharedValues:
        """The values for an evaluator."""
        return SharedValues(
            b"{}" if isinstance(self.converted, EvaluationProblem) else self.converted.text
        )

    @cached_property
    def activation(self) -> Any:  # noqa: ANN401, of the library
        """The library's form of the values."""
        converted = self.converted
        return self.names.env.Activation(
            {} if isinstance(converted, EvaluationProblem) else converted.value
        )


class Expression:
    """A compiled expression."""

    def __init__(
        self,
        source: str,
        result_kind: ResultKind,
        names: Names = EVENT,
        local: Collection[str] = (),
    ) -> None:
        """Compile an expression.

        Args:
            source: The expression.
            result_kind: Kind of the result.
            names: Names of shared values.
            local: Names with values that are passed with every evaluation.

        Raises:
            ExpressionInvalid: The expression cannot be compiled.
        """
        self.source = source
        self.result_kind = result_kind
        if len(source) > SOURCE_MAX:
            raise ExpressionInvalid(
                f"expected at most {SOURCE_MAX} characters, found {len(source)}: over the limit"
            )
        if LOCAL in source or _BINDS.search(source):
            raise ExpressionInvalid(f"expected neither cel.bind nor {LOCAL}")
        paths = [tuple(path.split(".")) for path in _PATH.findall(source)]
        self.roots = frozenset(path[0] for path in paths)
        self.names, self.local = names, tuple(local)
        self._local_names = [name for name in local if name in self.roots]
        self._field = _field(source, names.shared.union(local))
        self._costs: dict[tuple[int, int, bool], Cost] = {}
        self._parts: dict[tuple[Node, tuple[str, ...]], tuple[cel.Expression, set[str]]] = {}
        self._spells_nul = spells_nul(source)
        self._paths = _copied(source, paths, names.shared.union(local))
        bindings = [f'cel.bind({name},{LOCAL}("{name}"),' for name in self._local_names]
        prefix = "".join(bindings)
        # The closing parentheses are on a line of their own if the expression may end in a comment.
        suffix = ("\n" if bindings and "//" in source else "") + ")" * len(bindings)
        self._compiled = self._compile(prefix, source, suffix)
        actual = self._compiled.return_type()
        if result_kind in _PLAIN_KINDS and actual.name().startswith(_OPTIONAL):
            # An empty optional value is null, as a missing field is.
            self._compiled = self._compile(f"{prefix}(", source, f"\n).orValue(dyn(null)){suffix}")
            actual = cel.Type.DYN
        expected = _TYPES.get(result_kind, actual)
        if actual not in (expected, cel.Type.DYN):
            raise ExpressionInvalid(
                f"expected an expression that gives {result_kind.value}, "
                f"found {actual.name().lower()}"
            )

    def _compile(self, prefix: str, source: str, suffix: str) -> cel.Expression:
        try:
            return self.names.env.compile(f"{prefix}{source}{suffix}")
        except RuntimeError as error:
            problem = error_at_position(str(error), len(prefix))
        quoted = with_quoted_fields(source)
        if quoted == source:
            raise ExpressionInvalid(problem)
        return self._compile(prefix, quoted, suffix)

    def evaluate(
        self,
        facts: ExpressionValues,
        local: Mapping[str, Any] = NO_VALUES,
        evaluations: Evaluations | None = None,
    ) -> Any | EvaluationProblem:  # noqa: ANN401, any JSON value
        """Return the value of the expression, or why it has none.

        Args:
            facts: The shared values.
            local: The values of local names.
            evaluations: Remaining evaluation budget; None for no limit.

        Returns:
            Text, a boolean, a JSON value, or JSON text, by `result_kind`.
        """
        if self._field or self._literal is not None:
            read = self._read(facts, local)
            if read is not _ABSENT:
                return read
        shared = facts.converted
        if isinstance(shared, EvaluationProblem):
            return shared
        own = _all_converted({name: local[name] for name in self._local_names if name in local})
        if isinstance(own, EvaluationProblem):
            return own
        if evaluations is not None and not evaluations.admits(self._cost(shared, own)):
            return evaluations.run(self._task(own), facts.shared)
        too_long = self._too_long_to_copy(facts.values, local) if self._paths else None
        value = too_long or self._evaluate(self._program, facts, own)
        if isinstance(value, EvaluationProblem) and value.missing and has_parts(self._tree):
            cost = self._cost(shared, own, in_parts=True)
            if evaluations is not None and not evaluations.admits(cost):
                return evaluations.run(self._task(own), facts.shared)
            value = self._evaluate_parts(facts, local)
        return value if isinstance(value, EvaluationProblem) else self._result(value)

    def _evaluate_parts(
        self, facts: ExpressionValues, local: Mapping[str, Any]
    ) -> Any | EvaluationProblem:  # noqa: ANN401
        """Evaluate an expression in which a field is missing, so that its other parts are kept."""

        def evaluate(node: Node, values: Mapping[str, Any]) -> Any | EvaluationProblem:  # noqa: ANN401
            program, used = self._part(node, tuple(values))
            own = _all_converted({name: values[name] for name in used if name in values})
            if isinstance(own, EvaluationProblem):
                return own
            return self._evaluate(program, facts, own)

        own = {name: local[name] for name in self._local_names if name in local}
        return PartEvaluator(evaluate).evaluate(without_local(self._tree), own)

    def _part(self, node: Node, names: tuple[str, ...]) -> tuple[cel.Expression, set[str]]:
        """Return a part of the expression, compiled once, and the local names that it uses."""
        part = self._parts.get((node, names))
        if part is None:
            used = names_in(node).intersection([*names, *self._local_names])
            program = self.names.env.deserialize(write_tree(with_local(node, sorted(used))))
            part = self._parts[node, names] = program, used
        return part

    def _task(self, own: Mapping[str, CelValue]) -> ExpressionTask:
        values = b",".join(b'"%b":%b' % (name.encode(), own[name].text) for name in own)
        names, kind = tuple(sorted(self.names.shared)), self.result_kind.name
        return ExpressionTask(self.source, kind, names, self.local, b"{%b}" % values)

    @cached_property
    def _literal(self) -> Node | None:
        """The literal of a list or map, if the expression is one that contains only fields."""
        return literal_of(self._tree) if self.source.lstrip()[:1] in ("{", "[") else None

    def _read(self, facts: ExpressionValues, local: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return what the library would return for existing fields, or _ABSENT."""
        try:
            if self._literal is not None:
                own = {name: local[name] for name in self._local_names if name in local}
                value = evaluate_literal(self._literal, {**facts.values, **own})
            else:
                value = canonical_copy(self._field_value(facts, local))
        except NeedsLibrary:
            return _ABSENT
        return value if self.result_kind is ResultKind.VALUE else self._result(value)

    def _field_value(self, facts: ExpressionValues, local: Mapping[str, Any]) -> Any:  # noqa: ANN401
        root, *fields = self._field
        values = local if root in self._local_names else facts.values
        value: Any = values.get(root, _ABSENT)
        for field in fields:
            if type(value) is not dict or field not in value:
                raise NeedsLibrary
            value = value[field]
        return value

    def _cost(
        self, shared: CelValue, own: Mapping[str, CelValue], *, in_parts: bool = False
    ) -> Cost:
        """Return the bound of an evaluation, computed once for all data of about the same size."""
        size, items = len(shared.text), shared.items
        for value in own.values():
            size += len(value.text)
            items += value.items
        key = (size.bit_length(), items.bit_length(), in_parts)
        cost = self._costs.get(key)
        if cost is None:
            plain = self.result_kind in _PLAIN_KINDS
            cost = cost_of(self._tree, 1 << key[0], 1 << key[1], plain=plain)
            if in_parts:
                times = evaluations_of(without_local(self._tree), 1 << key[1])
                cost = cost_of_parts(cost, 1 << key[0], times)
            self._costs[key] = cost
        return cost

    @cached_property
    def _tree(self) -> Node:
        tree = read_tree(self._compiled.serialize())
        return rewritten(tree) if _REWRITTEN.search(self.source) else tree

    @cached_property
    def _program(self) -> cel.Expression:
        if not _REWRITTEN.search(self.source):
            return self._compiled
        return self.names.env.deserialize(write_tree(self._tree))

    def _evaluate(
        self, program: cel.Expression, facts: ExpressionValues, values: Mapping[str, CelValue]
    ) -> Any | EvaluationProblem:  # noqa: ANN401
        """Return the library's result."""
        local = _LocalValues(values)
        token = _local_values.set(local)
        try:
            result = program.eval(facts.activation)
            if result.type() == cel.Type.ERROR:
                message = _with_name(str(result.value()), local)
                return EvaluationProblem(message, missing=_MISSING.match(message) is not None)
            value = result.plain_value()
            had_nul = isinstance(facts.converted, CelValue) and facts.converted.had_nul
            if not (had_nul or any(converted.had_nul for converted in values.values())):
                return value
            if self._spells_nul:
                return EvaluationProblem(
                    "expected an expression that names no NUL, or values without that"
                )
            return restore_nul(value)
        # The library has no error classes of its own.
        except (RuntimeError, ValueError, TypeError, OverflowError, SystemError) as error:
            return EvaluationProblem(_with_name(str(error), local))
        except MemoryError:
            return EvaluationProblem(NO_MEMORY)
        finally:
            _local_values.reset(token)

    def _result(self, value: Any) -> Any | EvaluationProblem:  # noqa: ANN401
        if self.result_kind is ResultKind.JSON:
            return json_text(value)
        if self.result_kind is ResultKind.VALUE:
            return json_value(value)
        expected = str if self.result_kind is ResultKind.TEXT else bool
        if not isinstance(value, expected):
            return EvaluationProblem(f"expected {self.result_kind.value}, found {excerpt(value)}")
        return value

    def _too_long_to_copy(
        self, shared: Mapping[str, Any], local: Mapping[str, Any]
    ) -> EvaluationProblem | None:
        for root, *fields in self._paths:
            value, where = local.get(root, shared.get(root)), root
            for field in fields:
                if not isinstance(value, Mapping) or field not in value:
                    break
                value, where = value[field], f"{where}.{field}"
            longest = _longest_list(value)
            if longest > COPIED_MAX:
                return EvaluationProblem(
                    f"expected lists of at most {COPIED_MAX} items for map and filter, "
                    f"found one of {longest} in {where}"
                )
        return None


def _converted(value: Any) -> CelValue | EvaluationProblem:  # noqa: ANN401, any JSON value
    try:
        return encode_for_cel(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return EvaluationProblem(f"expected {error}")


def _all_converted(values: Mapping[str, Any]) -> dict[str, CelValue] | EvaluationProblem:
    converted: dict[str, CelValue] = {}
    for name, value in values.items():
        result = _converted(value)
        if isinstance(result, EvaluationProblem):
            return result
        converted[name] = result
    return converted


def _field(source: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the path of an expression that only reads a known field, else an empty path."""
    path = source.strip()
    if _FIELD.fullmatch(path) is None:
        return ()
    names = tuple(path.split("."))
    return names if names[0] in known else ()


def _longest_list(value: object) -> int:
    longest, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            longest = max(longest, len(item))
            pending.extend(item)
        elif isinstance(item, Mapping):
            pending.extend(item.values())
    return longest


def _copied(
    source: str, paths: list[tuple[str, ...]], known: Iterable[str]
) -> set[tuple[str, ...]]:
    """Return the paths of the values that `map` and `filter` may iterate over.

    These are the values themselves if all of them have a path, else everything that is named.
    """
    macros = len(_COPIES.findall(source))
    over = [path for path in paths if path[-1] in ("map", "filter") and path[0] in known]
    return set(over if len(over) == macros else paths)
