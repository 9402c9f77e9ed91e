"""A definition made ready: checked, its expressions compiled, its ways sorted. Made once."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.processors.expressions import Expression, ExpressionInvalid, ResultKind
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
from headwater.processors.graph.scope import BRANCH, RESULT, SHARED
from headwater.processors.graph.validation import may_be_item, problems_of
from headwater.processors.json_schemas import JsonSchema, SchemaInvalid

#: Targets and the expressions that give their values.
Mapped: TypeAlias = tuple[tuple[str, Expression], ...]


class Route(NamedTuple):
    """A transition with its expressions."""

    transition: Transition
    condition: Expression | None
    collection: Expression | None


class NodeMappings(NamedTuple):
    """The mappings of a node with their expressions."""

    inputs: Mapped
    outputs: Mapped


#: The ways out of a node: tiers in the order in which they are tried.
Tiers: TypeAlias = tuple[tuple[Route, ...], ...]

_NOWHERE: Final[Tiers] = ()


class Graph:
    """A definition that can be run."""

    def __init__(self, definition: Definition, *, whole: bool = True) -> None:
        """Checks and compiles a definition.

        Shape:  of a part of one, the groups that it names may be forked elsewhere.
        Errors: DefinitionInvalid, with everything that is wrong.
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
        #: What input, context and output have to be, where the definition says.
        self.input_schema = compiler.schema("inputSchema", definition.input_schema)
        self.context_schema = compiler.schema("contextSchema", definition.context_schema)
        self.output_schema = compiler.schema("outputSchema", definition.output_schema)
        problems += compiler.problems
        if problems:
            raise DefinitionInvalid(problems)
        self.digest = digest(definition)
        self._nodes = {node.ref: node for node in definition.nodes}
        self._transitions = {each.ref: each for each in definition.transitions}
        self._tiers = _tiers(routes)
        self._meetings = _meetings(definition.transitions)

    def node(self, ref: str) -> Node:
        """A node."""
        return self._nodes[ref]

    def transition(self, ref: str) -> Transition:
        """A transition."""
        return self._transitions[ref]

    def tiers(self, node_ref: str) -> Tiers:
        """The ways out of a node."""
        return self._tiers.get(node_ref, _NOWHERE)

    def mappings(self, node_ref: str) -> NodeMappings:
        """The mappings of a node."""
        return self._mappings[node_ref]

    def meeting_of(self, group: str) -> Transition | None:
        """The first transition to a meeting point of a group."""
        return self._meetings.get(group)


def graph_of(data: Mapping[str, Any] | bytes | str) -> Graph:
    """Reads and readies a definition.

    Errors: DefinitionInvalid.
    """
    return Graph(read_definition(data))


def ready_mapping(path: str, mapping: Mapping[str, str]) -> Mapped:
    """Compiles a mapping by itself.

    Errors: DefinitionInvalid.
    """
    compiler = _Compiler()
    ready = compiler.mapped(path, mapping)
    if compiler.problems:
        raise DefinitionInvalid(compiler.problems)
    return ready


#: Characters of all expressions that differ, a short one counted as `_SHORT`: what takes about
#: half a second to compile, for which an owner decides nothing else.
EXPRESSIONS_MAX: Final = 200_000
_SHORT: Final = 50


class _Compiler:
    """Compiles the expressions of a definition, each text once, and keeps what is wrong."""

    def __init__(self, transitions: tuple[Transition, ...] = ()) -> None:
        self.problems: list[Problem] = []
        items = {each.foreach.item_var for each in transitions if each.foreach}
        # A name that cannot be one is told where it is declared.
        self._items = sorted(name for name in items if may_be_item(name))
        self._compiled: dict[tuple[str, ResultKind, bool], Expression | ExpressionInvalid] = {}
        self._left = EXPRESSIONS_MAX

    def expression(
        self, path: str, source: str, gives: ResultKind = ResultKind.VALUE, *, result: bool = False
    ) -> Expression | None:
        key = (source, gives, result)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._compile(*key)
        if isinstance(found, Expression):
            return found
        message = f"the expression `{source[:200]}` is not valid: {found}"
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
            where = f"{path}.foreach.collection"
            collection = self.expression(where, transition.foreach.collection)
        return Route(transition, condition, collection)


def _tiers(routes: list[Route]) -> dict[str, Tiers]:
    leaving: dict[str, list[Route]] = {}
    for route in routes:
        leaving.setdefault(route.transition.from_node_ref, []).append(route)
    return {
        node: tuple(tuple(tier) for _, tier in groupby(sorted(found, key=_priority), _priority))
        for node, found in leaving.items()
    }


def _priority(route: Route) -> int:
    return route.transition.priority


def _meetings(transitions: tuple[Transition, ...]) -> dict[str, Transition]:
    meetings: dict[str, Transition] = {}
    for each in transitions:
        if each.synchronization is not None:
            meetings.setdefault(each.synchronization.sibling_group, each)
    return meetings
