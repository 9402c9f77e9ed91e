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
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headwater.processors.cel_ast import Node
from headwater.processors.cel_cost import LOCAL, Cost, cost_of_parts
from headwater.processors.cel_parts import (
    PartEvaluator,
    evaluations_of,
    has_parts,
    without_local,
)
from headwater.processors.cel_programs import (
    ExpressionInvalid,
    Names,
    Program,
    Programs,
    ResultKind,
)
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
#: Doubles a text with every use, and is not needed in conditions.
_BINDS: Final = re.compile(r"\bcel\s*\.\s*bind\b")

#: Part of the message of an evaluation with too many iterations.
_EXCEEDED: Final = "budget exceeded"
_ABSENT: Final = object()
_NONE: Final[Mapping[str, CelValue]] = MappingProxyType({})
#: Result of an evaluation that is left to the evaluator's process.
_TOO_COSTLY: Final = object()
NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})
#: Words that cannot be local names: the reserved words of CEL, and LOCAL.
WORDS: Final = frozenset(
    "as break const continue else false for function if import in let loop namespace null package "
    f"return true var void while {LOCAL}".split()
)


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
        return self.names.plain.Activation(
            {} if isinstance(converted, EvaluationProblem) else converted.value
        )


class _Failed(NamedTuple):
    """An evaluation without a result, to be repeated in another way.

    Attributes:
        facts: The shared values.
        local: The values of local names.
        shared: The shared values for the library.
        own: The values of the local names that the expression uses, for the library.
        evaluations: Remaining evaluation budget; None for no limit.
    """

    facts: ExpressionValues
    local: Mapping[str, Any]
    shared: CelValue
    own: Mapping[str, CelValue]
    evaluations: Evaluations | None

    def admits(self, cost: Cost) -> bool:
        """Return whether another evaluation is done in this process."""
        return self.evaluations is None or self.evaluations.admits(cost)


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
        self._spells_nul = spells_nul(source)
        self._paths = _copied(source, paths, names.shared.union(local))
        self._programs = Programs(source, result_kind, names, self._local_names)
        self._iterates = self._programs.iterates
        #: That of the full environment if only that had a result the last time.
        self._usual = self._programs.plain or self._programs.full

    def evaluate(  # noqa: PLR0911, one per way to a result
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
        own = self._converted_names(local) if self._local_names else _NONE
        if isinstance(own, EvaluationProblem):
            return own
        program = self._usual
        if self._iterates and self._programs.goes_over_objects(local, facts.values):
            program = self._programs.full
        if evaluations is not None and not evaluations.admits(self._cost(program, shared, own)):
            return evaluations.run(self._task(own), facts.shared)
        if self._paths and (problem := self._too_long_to_copy(facts.values, local)):
            return problem
        value = self._evaluate(program, facts, shared, own)
        if isinstance(value, EvaluationProblem):
            failed = _Failed(facts, local, shared, own, evaluations)
            value = self._evaluate_again(value, program, failed)
            if value is _TOO_COSTLY and evaluations is not None:
                return evaluations.run(self._task(own), facts.shared)
        return value if isinstance(value, EvaluationProblem) else self._result(value)

    def _evaluate_again(self, value: EvaluationProblem, program: Program, failed: _Failed) -> Any:  # noqa: ANN401
        """Evaluate in the full environment, and in parts if a field is missing.

        Returns:
            The value, a problem, or _TOO_COSTLY.
        """
        programs, facts = self._programs, failed.facts
        if program is programs.plain and programs.extended and _EXCEEDED not in value.message:
            if not failed.admits(self._cost(programs.full, failed.shared, failed.own)):
                return _TOO_COSTLY
            value = self._evaluate(programs.full, facts, failed.shared, failed.own)
            if not isinstance(value, EvaluationProblem):
                self._usual = programs.full
                return value
        if not (value.missing and has_parts(program.tree)):
            return value
        tree = without_local(programs.full.tree)
        if not failed.admits(self._cost(programs.full, failed.shared, failed.own, tree)):
            return _TOO_COSTLY

        def evaluate(node: Node, values: Mapping[str, Any]) -> Any | EvaluationProblem:  # noqa: ANN401
            part, used = programs.part(node, tuple(values))
            own = _all_converted({name: values[name] for name in used if name in values})
            if isinstance(own, EvaluationProblem):
                return own
            return self._evaluate(part, facts, failed.shared, own)

        local = {name: failed.local[name] for name in failed.own}
        return PartEvaluator(evaluate).evaluate(tree, local)

    def _evaluate(
        self,
        program: Program,
        facts: ExpressionValues,
        shared: CelValue,
        own: Mapping[str, CelValue],
    ) -> Any | EvaluationProblem:  # noqa: ANN401
        value = program.evaluate(facts.activation, own)
        if not (shared.had_nul or (own and any(name.had_nul for name in own.values()))):
            return value
        if isinstance(value, EvaluationProblem):
            return value
        if self._spells_nul:
            return EvaluationProblem(
                "expected an expression that names no NUL, or values without that"
            )
        return restore_nul(value)

    def _converted_names(self, local: Mapping[str, Any]) -> dict[str, CelValue] | EvaluationProblem:
        return _all_converted({name: local[name] for name in self._local_names if name in local})

    def _task(self, own: Mapping[str, CelValue]) -> ExpressionTask:
        values = b",".join(b'"%b":%b' % (name.encode(), own[name].text) for name in own)
        names, kind = tuple(sorted(self.names.shared)), self.result_kind.name
        return ExpressionTask(self.source, kind, names, self.local, b"{%b}" % values)

    @cached_property
    def _literal(self) -> Node | None:
        """The literal of a list or map, if the expression is one that contains only fields."""
        return literal_of(self._usual.tree) if self.source.lstrip()[:1] in ("{", "[") else None

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
        self,
        program: Program,
        shared: CelValue,
        own: Mapping[str, CelValue],
        parts: Node | None = None,
    ) -> Cost:
        """Return the bound of an evaluation, of the whole expression or in parts."""
        size, items = len(shared.text), shared.items
        for value in own.values():
            size += len(value.text)
            items += value.items
        cost = program.costs.get((size.bit_length(), items.bit_length()))
        if cost is None:
            cost = program.cost(size, items, plain=self.result_kind.plain)
        return cost if parts is None else cost_of_parts(cost, size, evaluations_of(parts, items))

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
