"""`GraphWorkflow`: a definition in Python, with the keys of the document in snake case."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from headwater.processors.graph.definition import Problem
from headwater.processors.graph.diagrams import to_mermaid, to_svg
from headwater.processors.graph.graph import Graph, graph_of

#: Contents of these belong to the author: their keys are not converted.
_AUTHORS_OWN: Final = frozenset(
    {"inputMapping", "outputMapping", "inputSchema", "contextSchema", "outputSchema"}
)


class GraphWorkflow:
    """A graph defined in Python. Creating one neither registers nor checks it."""

    def __init__(  # noqa: PLR0913, the keys of the document
        self,
        *,
        name: str,
        initial_node_ref: str,
        nodes: Sequence[Mapping[str, Any]],
        transitions: Sequence[Mapping[str, Any]] = (),
        input_schema: Mapping[str, Any] | None = None,
        context_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        output_mapping: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        on_dead_end: str | None = None,
    ) -> None:
        parts = {
            "name": name,
            "initial_node_ref": initial_node_ref,
            "nodes": list(nodes),
            "transitions": list(transitions),
            "input_schema": input_schema,
            "context_schema": context_schema,
            "output_schema": output_schema,
            "output_mapping": output_mapping,
            "timeout_ms": timeout_ms,
            "on_dead_end": on_dead_end,
        }
        self.name = name
        self._document = _camel({key: value for key, value in parts.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """Return the document as it is deployed."""
        return dict(self._document)

    def graph(self) -> Graph:
        """Return the compiled graph.

        Raises:
            DefinitionInvalid: Contains all problems.
        """
        return graph_of(self._document)

    def warnings(self) -> tuple[Problem, ...]:
        """Return the parts that will not do what their author expects.

        Raises:
            DefinitionInvalid: Contains all problems.
        """
        return self.graph().warnings

    def to_mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart.

        Raises:
            DefinitionInvalid: Contains all problems.
        """
        return to_mermaid(self.graph().definition)

    def to_svg(self) -> str:
        """Return the graph as an SVG picture.

        Raises:
            DefinitionInvalid: Contains all problems.
        """
        return to_svg(self.graph().definition)

    @override
    def __repr__(self) -> str:
        return f"<graph {self.name}>"


def _camel(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        converted = {_camel_key(key): inner for key, inner in value.items()}
        return {
            key: inner if key in _AUTHORS_OWN else _camel(inner) for key, inner in converted.items()
        }
    if isinstance(value, (list, tuple)):
        return [_camel(inner) for inner in value]
    return value


def _camel_key(key: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), str(key))
