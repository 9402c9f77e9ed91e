"""A compiled definition: checked, with parsed expressions and sorted transitions."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.processors.cel_programs import ExpressionInvalid, ResultKind
from headwater.processors.evaluations import Evaluations
from headwater.processors.expressions import Expression
from headwater.processors.graph.context import BRANCH, RESULT, SHARED, path_problem
from headwater.processors.graph.context_schemas import defaults_of, without_required
from headwater.processors.graph.definition import (
    INVALID_DEFINITION,
    INVALID_EXPRESSION,
    Definition,
    DefinitionInvalid,
    Node,
    Problem,
    Transition,
    digest,
    read_definition,
)
from headwater.processors.graph.validation import may_be_item, problems_of
from headwater.processors.graph.warnings import warnings_of
from headwater.processors.json_schemas import JsonSchema, SchemaInvalid

#: Targets and the expressions for their values.
Mapped: TypeAlias = tuple[tuple[str, Expression], ...]


class Route(NamedTuple):
    """A transition with its compiled expressions."""

    transition: Transition
    condition: Expression | None
    collection: Expression | None


class NodeMappings(NamedTuple):
    """The mappings of a node with their compiled expressions."""

    inputs: Mapped
    outputs: Mapped


#: Transitions out of a node, in tiers, in the order in which the tiers are tried.
Tiers: TypeAlias = tuple[tuple[Route, ...], ...]

_NO_TIERS: Final[Tiers] = ()


class Graph:
    """A compiled definition."""

    def __init__(self, definition: Definition, *, whole: bool = True) -> None:
        """Check and compile a definition.

        Args:
            definition: The definition.
            whole: False for a part of a definition; its groups may be forked elsewhere.

        Raises:
            DefinitionInvalid: Contains all problems.
        """
        self.definition = definition
        problems = problems_of(definition, whole=whole)
        compiler = _Compiler(definition.transitions)
        self._mappings = {
            node.ref: compiler.of_node(f"nodes[{index}]", node)
            for index, node in enumerate(definition.nodes)
        }
        routes = [
            compiler.of_transition(f"transitions[{index}]", transition)
            for index, transition in enumerate(definition.transitions)
        ]
        self.output = compiler.mapped("outputMapping", definition.output_mapping)
        #: Schemas of input and output, where the definition has them.
        self.input_schema = compiler.schema("inputSchema", definition.input_schema)
        self.output_schema = compiler.schema("outputSchema", definition.output_schema)
        #: Schemas of the state while the run lasts, and at its end.
        self.written_schema, self._final_schema = compiler.state_schemas(definition)
        problems += compiler.problems
        if problems:
            raise DefinitionInvalid(problems)
        #: Values with which the state begins.
        self.defaults = defaults_of(definition.context_schema or {})
        self.digest = digest(definition)
        self._nodes = {node.ref: node for node in definition.nodes}
        self._transitions = {transition.ref: transition for transition in definition.transitions}
        self._tiers = _tiers(routes)
        self._meetings = _meetings(definition.transitions)

    @cached_property
    def warnings(self) -> tuple[Problem, ...]:
        """Parts that will not do what their author expects."""
        return tuple(warnings_of(self.definition))

    def final_state_problem(
        self, state: Mapping[str, Any], evaluations: Evaluations | None
    ) -> str | None:
        """Return what is wrong with the state at the end of a run, or None."""
        if self._final_schema is None:
            return None
        return self._final_schema.problem(state, "state", evaluations)

    def node(self, ref: str) -> Node:
        """Return a node."""
        return self._nodes[ref]

    def transition(self, ref: str) -> Transition:
        """Return a transition."""
        return self._transitions[ref]

    def tiers(self, node_ref: str) -> Tiers:
        """Return the transitions out of a node, in tiers."""
        return self._tiers.get(node_ref, _NO_TIERS)

    def mappings(self, node_ref: str) -> NodeMappings:
        """Return the mappings of a node."""
        return self._mappings[node_ref]

    def meeting_of(self, group: str) -> Transition | None:
        """Return the first transition to a join of a group."""
        return self._meetings.get(group)


def graph_of(data: Mapping[str, Any] | bytes | str) -> Graph:
    """Read and compile a definition.

    Raises:
        DefinitionInvalid: Contains all problems.
    """
    return Graph(read_definition(data))


def compile_mapping(path: str, mapping: Mapping[str, str]) -> Mapped:
    """Compile a mapping by itself.

    Raises:
        DefinitionInvalid: Contains all problems.
    """
    compiler = _Compiler()
    compiled = compiler.mapped(path, mapping)
    if compiler.problems:
        raise DefinitionInvalid(compiler.problems)
    return compiled


#: Characters of all distinct expressions, counted as at least `_SHORT` characters. They take about
#: half a second to compile, which blocks the owner.
EXPRESSIONS_MAX: Final = 200_000
_SHORT: Final = 50


class _Compiler:
    """Compiles the expressions of a definition, every distinct one once, and collects problems."""

    def __init__(self, transitions: tuple[Transition, ...] = ()) -> None:
        self.problems: list[Problem] = []
        items = {way.foreach.item_var for way in transitions if way.foreach}
        # An invalid name is reported where it is declared.
        self._items = sorted(name for name in items if may_be_item(name))
        self._compiled: dict[tuple[str, ResultKind, bool], Expression | ExpressionInvalid] = {}
        self._left = EXPRESSIONS_MAX

    def expression(
        self, path: str, source: str, gives: ResultKind = ResultKind.VALUE, *, result: bool = False
    ) -> Expression | None:
        key = (source, gives, result)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(*key)
        if isinstance(compiled, Expression):
            return compiled
        message = f"the expression `{source[:200]}` is not valid: {compiled}"
        self.problems.append(Problem(INVALID_EXPRESSION, path, message))
        return None

    def _compile(
        self, source: str, gives: ResultKind, result: bool
    ) -> Expression | ExpressionInvalid:
        self._left -= max(len(source), _SHORT)
        if self._left < 0:
            return ExpressionInvalid(
                f"expected at most {EXPRESSIONS_MAX} characters in all expressions of a graph, "
                "found more: over the limit"
            )
        local = [*self._items, BRANCH, *([RESULT] if result else [])]
        try:
            return Expression(source, gives, SHARED, local)
        except ExpressionInvalid as error:
            return error

    def mapped(self, path: str, mapping: Mapping[str, str], *, result: bool = False) -> Mapped:
        return tuple(self._pairs(path, mapping, result=result))

    def _pairs(
        self, path: str, mapping: Mapping[str, str], *, result: bool
    ) -> Iterator[tuple[str, Expression]]:
        for target, source in mapping.items():
            compiled = self.expression(f"{path}.{target}", source, result=result)
            if compiled is not None:
                yield target, compiled

    def schema(self, path: str, schema: Mapping[str, Any] | None) -> JsonSchema | None:
        if not schema:
            return None
        try:
            return JsonSchema(schema)
        except SchemaInvalid as error:
            self.problems.append(Problem(INVALID_DEFINITION, path, str(error)))
            return None

    def state_schemas(self, definition: Definition) -> tuple[JsonSchema | None, JsonSchema | None]:
        """Return the schemas of the state for every change, and for the end if that is another."""
        path, schema = "contextSchema", definition.context_schema or {}
        final = self.schema(path, schema)
        if final is None:
            return None, None
        for name in defaults_of(schema):
            if path_problem(name, shared=False) or "." in name:
                message = f"expected a default of a field without dots in its name, found {name!r}"
                self.problems.append(Problem(INVALID_DEFINITION, path, message))
        without = without_required(schema)
        written = final if without == schema else self.schema(path, without)
        problem = written and written.problem(defaults_of(schema), "state")
        if problem:
            message = f"expected defaults that meet the schema, found {problem}"
            self.problems.append(Problem(INVALID_DEFINITION, path, message))
        return written, None if written is final else final

    def of_node(self, path: str, node: Node) -> NodeMappings:
        return NodeMappings(
            inputs=self.mapped(f"{path}.inputMapping", node.input_mapping),
            outputs=self.mapped(f"{path}.outputMapping", node.output_mapping, result=True),
        )

    def of_transition(self, path: str, transition: Transition) -> Route:
        condition = collection = None
        if transition.condition is not None:
            condition = self.expression(
                f"{path}.condition", transition.condition, ResultKind.CONDITION
            )
        if transition.foreach is not None:
            collection_path = f"{path}.foreach.collection"
            collection = self.expression(collection_path, transition.foreach.collection)
        return Route(transition, condition, collection)


def _tiers(routes: list[Route]) -> dict[str, Tiers]:
    leaving: dict[str, list[Route]] = {}
    for route in routes:
        leaving.setdefault(route.transition.from_node_ref, []).append(route)
    return {
        node: tuple(tuple(tier) for _, tier in groupby(sorted(outgoing, key=_priority), _priority))
        for node, outgoing in leaving.items()
    }


def _priority(route: Route) -> int:
    return route.transition.priority


def _meetings(transitions: tuple[Transition, ...]) -> dict[str, Transition]:
    meetings: dict[str, Transition] = {}
    for transition in transitions:
        if transition.synchronization is not None:
            meetings.setdefault(transition.synchronization.sibling_group, transition)
    return meetings
