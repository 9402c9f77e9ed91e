"""Questions about an instance of a graph, which API, client, test harness and console share."""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from headwater.schemas.graph_answers import (
    Explanation,
    MigrationPlan,
    SimulatedRouting,
    SimulatedSynchronization,
    TokensPage,
    TracePage,
)

A = TypeVar("A")

#: Limits of one response: tokens, and decisions.
TOKENS_MAX: Final = 1_000
TRACED_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[A]):
    """A question about an instance.

    Attributes:
        path: Its URL path, below that of the instance.
        operation: Its name in the description of the API.
        answer: Type of the answer; str for text that is no JSON.
        summary: One line for users, without a full stop.
        effect: Description for users.
    """

    path: str
    operation: str
    answer: type[A]
    summary: str
    effect: str


_AS_OF: Final = (
    "State of a run, by default the current one, after its event `at`; without `at`, its state "
    "now. It is read from the history in Kafka, so it includes all earlier responses. Nothing is "
    "changed."
)

TOKENS: Final = Question(
    path="/graph/tokens",
    operation="introspectTokens",
    answer=TokensPage,
    summary="List the live tokens of a graph",
    effect=f"The node of every token, and what it waits for. {_AS_OF}",
)
EXPLAIN: Final = Question(
    path="/graph/explain",
    operation="explainInstance",
    answer=Explanation,
    summary="Explain what a graph waits for",
    effect="For every waiting join: which branches have arrived, which are missing and why, when "
    f"it times out, and what happens then; as data and as sentences. {_AS_OF}",
)
TRACE: Final = Question(
    path="/graph/trace",
    operation="traceInstance",
    answer=TracePage,
    summary="Trace the decisions of a graph",
    effect="Computes every decision again from the state before it: what the planners decided and "
    "which inputs they read. If `same` is false, another release decided differently.",
)
SVG: Final = Question(
    path="/graph/svg",
    operation="drawInstance",
    answer=str,
    summary="Draw a run of a graph as SVG",
    effect=f"Its definition, with its tokens. {_AS_OF}",
)
MERMAID: Final = Question(
    path="/graph/mermaid",
    operation="drawInstanceInMermaid",
    answer=str,
    summary="Draw a run of a graph as a Mermaid flowchart",
    effect=f"Its definition, with its tokens. {_AS_OF}",
)
SIMULATE_ROUTING: Final = Question(
    path="/graph/simulate-routing",
    operation="simulateRouting",
    answer=SimulatedRouting,
    summary="Simulate the completion of a token",
    effect="Which transitions would fire, all decisions that would follow, and the status that the "
    f"run would have. {_AS_OF}",
)
SIMULATE_SYNCHRONIZATION: Final = Question(
    path="/graph/simulate-synchronization",
    operation="simulateSynchronization",
    answer=SimulatedSynchronization,
    summary="Simulate the arrival of a token at a join",
    effect=f"The counts of the join, and the decisions that would follow. {_AS_OF}",
)
SIMULATE_MIGRATION: Final = Question(
    path="/graph/simulate-migration",
    operation="simulateMigration",
    answer=MigrationPlan,
    summary="Simulate moving a run to another version of its graph",
    effect="Where every live token would be, and why the run cannot continue there, if it cannot. "
    "Nothing is changed.",
)
