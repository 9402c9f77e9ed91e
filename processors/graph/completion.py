"""The end of a run: its output, by the output mapping of its definition."""

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.decisions import CompleteWorkflow, Planned, Trace, failed
from headwater.processors.graph.graph import Graph, Mapped
from headwater.processors.graph.mappings import mapped
from headwater.processors.graph.scope import Scope


def decide_completion(graph: Graph, scope: Scope) -> Planned:
    """Decide the end of a run without live tokens: a completion, or a failed expression."""
    return complete(graph.output, scope)


def complete(mapping: Mapped, scope: Scope) -> Planned:
    """Like `decide_completion`; without a mapping, the output is the output section."""
    started = Trace("decision.completion.start", payload={"fields": [name for name, _ in mapping]})
    if not mapping:
        return Planned((CompleteWorkflow(output=dict(scope.context.output)),), (started,))
    output = mapped(mapping, scope, "outputMapping")
    if isinstance(output, EvaluationProblem):
        return failed(output.message, events=(started,))
    return Planned((CompleteWorkflow(output=output),), (started,))
