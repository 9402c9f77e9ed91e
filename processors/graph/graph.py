"""A compiled definition: checked, with parsed expressions and sorted transitions."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.processors.cel_programs import ExpressionInvalid, ResultKind
from headwater.processors.evaluations import Evaluations
from headwater.processors.expressions import Expression
from headwater.processors.graph.context import BRANCH, ERROR, RESULT, SHARED, path_problem
from headwater.processors.graph.context_schemas import defaults_of, without_required
from headwater.processors.graph.definition import (
    INVALID_DEFINITION,
    INVALID_EXPRESSION,
    ON_ERROR,
    Definition,
    DefinitionInvalid,
    Node,
    Problem,
    Transition,
    digest,
    read_definition,
)
from headwater.processors.graph.validation import (
    FAN_IN,
    JOIN_ALL,
    TOLERATE,
    may_be_item,
    problems_of,
    quorum,
)
from headwater.processors.graph.warnings import warnings_of
from headwater.processors.input_texts import wide_integer_problem
from headwater.processors.json_schemas import JsonSchema, SchemaInvalid

#: Targets and the expressions for their values.
Mapped: TypeAlias = tuple[tuple[str, Expression], ...]


class Route(NamedTuple):
    """A transition with its compiled expressions."""

    transition: Transition
    condition: Expression | None
    collection: Expression | None


class NodeMappings(NamedTuple):
    """The mappings of a node with their compiled expressions, and the end of its wait."""

    inputs: Mapped
    outputs: Mapped
    until: Expression | None = None


#: Transitions out of a node, in tiers, in the order in which the tiers are tried.
Tiers: TypeAlias = tuple[tuple[Route, ...], ...]

_NO_TIERS: Final[Tiers] = ()
_NO_JOINS: Final[Mapping[str, tuple[Transition, ...]]] = {}


def _after_error(transitions: Sequence[Transition]) -> set[str]:
    """Return the nodes to which errors lead, also past a fork without branches."""
    ways = [way for way in transitions if way.on == ON_ERROR]
    empty = {way.sibling_group for way in ways if way.foreach and way.foreach.on_empty == FAN_IN}
    joined = {
        way.to_node_ref
        for way in transitions
        if way.synchronization is not None and way.synchronization.sibling_group in empty
    }
    return joined | {way.to_node_ref for way in ways}


class Graph:
    """A compiled definition."""

    def __init__(
        self, definition: Definition, *, whole: bool = True, items: Iterable[str] = ()
    ) -> None:
        """Check and compile a definition.

        Args:
            definition: The definition.
            whole: False for a part of a definition; its groups may be forked elsewhere.
            items: Item variables of forks that are not in this part.

        Raises:
            DefinitionInvalid: Contains all problems.
        """
        self.definition = definition
        problems = problems_of(definition, whole=whole)
        compiler = _Compiler(definition.transitions, items)
        after_error = _after_error(definition.transitions)
        self._mappings = {
            node.ref: compiler.of_node(f"nodes[{index}]", node, after_error)
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
        self._tiers = _tiers([route for route in routes if route.transition.on != ON_ERROR])
        self._error_tiers = _tiers([route for route in routes if route.transition.on == ON_ERROR])
        self._ways_to: dict[str, list[str]] = {}
        for transition in definition.transitions:
            self._ways_to.setdefault(transition.to_node_ref, []).append(transition.ref)
        self._joining_all = {node.ref for node in definition.nodes if node.join == JOIN_ALL}
        self._joins = _joins(definition.transitions)
        joined = [way.synchronization for way in definition.transitions if way.synchronization]
        self._early = {join.sibling_group for join in joined if join.strategy != "all"}
        self._with_quorum = {join.sibling_group for join in joined if quorum(join.strategy)}
        self._tolerant = {
            join.sibling_group for join in joined if join.on_branch_failure == TOLERATE
        }

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
        """Return the transitions that follow the success of a node, in tiers."""
        return self._tiers.get(node_ref, _NO_TIERS)

    def error_tiers(self, node_ref: str) -> Tiers:
        """Return the transitions that follow an error of a node, in tiers."""
        return self._error_tiers.get(node_ref, _NO_TIERS)

    def ways_to(self, node_ref: str) -> Sequence[str]:
        """Return the refs of the transitions that lead to a node."""
        return self._ways_to.get(node_ref, ())

    def mappings(self, node_ref: str) -> NodeMappings:
        """Return the mappings of a node."""
        return self._mappings[node_ref]

    def joined_transitions(self, node_ref: str) -> Sequence[str]:
        """Return the transitions by each of which a node waits for a token, mostly none."""
        ways = self.ways_to(node_ref) if node_ref in self._joining_all else ()
        # There is nothing to wait for at a node with a single one.
        return ways if len(ways) > 1 else ()

    def joins_of(self, group: str | None) -> Mapping[str, tuple[Transition, ...]]:
        """Return the transitions to the joins of a group, by node, in the document's order."""
        return self._joins.get(group, _NO_JOINS)

    def joins_early(self, group: str | None) -> bool:
        """Whether a join of a group can continue while branches may still arrive."""
        return group in self._early

    def has_quorum(self, group: str | None) -> bool:
        """Whether a join of a group needs a number of branches."""
        return group in self._with_quorum

    def tolerates_failures(self, group: str | None) -> bool:
        """Whether the run continues when a branch of a group fails."""
        return group in self._tolerant


def graph_of(data: Mapping[str, Any] | bytes | str) -> Graph:
    """Read and compile a definition.

    Raises:
        DefinitionInvalid: Contains all problems.
    """
    return Graph(read_definition(data))


#: Characters of all distinct expressions, counted as at least `_SHORT` characters. They take about
#: half a second to compile, which blocks the owner.
EXPRESSIONS_MAX: Final = 200_000
_SHORT: Final = 50


class _Compiler:
    """Compiles the expressions of a definition, every distinct one once, and collects problems."""

    def __init__(
        self, transitions: tuple[Transition, ...] = (), more_items: Iterable[str] = ()
    ) -> None:
        self.problems: list[Problem] = []
        items = {way.foreach.item_var for way in transitions if way.foreach} | {*more_items}
        # An invalid name is reported where it is declared.
        self._items = sorted(name for name in items if may_be_item(name))
        self._compiled: dict[
            tuple[str, ResultKind, tuple[str, ...]], Expression | ExpressionInvalid
        ] = {}
        self._left = EXPRESSIONS_MAX

    def expression(
        self,
        path: str,
        source: str,
        gives: ResultKind = ResultKind.VALUE,
        more: tuple[str, ...] = (),
    ) -> Expression | None:
        """Compile an expression, with the names `more` in addition to the usual ones."""
        key = (source, gives, more)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(*key)
        if isinstance(compiled, Expression):
            return compiled
        message = f"the expression `{source[:200]}` is not valid: {compiled}"
        self.problems.append(Problem(INVALID_EXPRESSION, path, message))
        return None

    def _compile(
        self, source: str, gives: ResultKind, more: tuple[str, ...]
    ) -> Expression | ExpressionInvalid:
        self._left -= max(len(source), _SHORT)
        if self._left < 0:
            return ExpressionInvalid(
                f"expected at most {EXPRESSIONS_MAX} characters in all expressions of a graph, "
                "found more: over the limit"
            )
        local = [*self._items, BRANCH, *more]
        try:
            return Expression(source, gives, SHARED, local)
        except ExpressionInvalid as error:
            return error

    def mapped(self, path: str, mapping: Mapping[str, str], more: tuple[str, ...] = ()) -> Mapped:
        return tuple(self._pairs(path, mapping, more))

    def _pairs(
        self, path: str, mapping: Mapping[str, str], more: tuple[str, ...]
    ) -> Iterator[tuple[str, Expression]]:
        for target, source in mapping.items():
            compiled = self.expression(f"{path}.{target}", source, more=more)
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
        defaults = defaults_of(schema)
        problem = wide_integer_problem(json.dumps(defaults), "state")
        if problem is None and written is not None:
            problem = written.problem(defaults, "state")
        if problem:
            message = f"expected defaults that meet the schema, found {problem}"
            self.problems.append(Problem(INVALID_DEFINITION, path, message))
        return written, None if written is final else final

    def of_node(self, path: str, node: Node, after_error: Collection[str]) -> NodeMappings:
        more = (ERROR,) if node.ref in after_error else ()
        until = None
        if node.wait is not None and node.wait.until is not None:
            until = self.expression(f"{path}.wait.until", node.wait.until, more=more)
        return NodeMappings(
            inputs=self.mapped(f"{path}.inputMapping", node.input_mapping, more),
            outputs=self.mapped(f"{path}.outputMapping", node.output_mapping, (RESULT, *more)),
            until=until,
        )

    def of_transition(self, path: str, transition: Transition) -> Route:
        condition = collection = None
        more = (ERROR,) if transition.on == ON_ERROR else ()
        if transition.condition is not None:
            condition = self.expression(
                f"{path}.condition", transition.condition, ResultKind.CONDITION, more
            )
        if transition.foreach is not None:
            collection_path = f"{path}.foreach.collection"
            collection = self.expression(collection_path, transition.foreach.collection, more=more)
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


def _joins(
    transitions: tuple[Transition, ...],
) -> dict[str | None, dict[str, tuple[Transition, ...]]]:
    joins: dict[str | None, dict[str, list[Transition]]] = {}
    for transition in transitions:
        if transition.synchronization is not None:
            of_group = joins.setdefault(transition.synchronization.sibling_group, {})
            of_group.setdefault(transition.to_node_ref, []).append(transition)
    return {
        group: {node: tuple(leading) for node, leading in of_group.items()}
        for group, of_group in joins.items()
    }
