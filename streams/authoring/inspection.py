"""Inspection of graph instances, with the same methods for a client and for a test.

Inspection changes nothing. It folds the history of a run up to the event with sequence `at`, or all
of it if `at` is None. The run is the current one, or the one selected by `in_run`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from typing_extensions import override

from headwater.processors.runs.inspection import (
    EXPLAIN,
    MERMAID,
    SIMULATE_MIGRATION,
    SIMULATE_ROUTING,
    SIMULATE_SYNCHRONIZATION,
    SVG,
    TOKENS,
    TOKENS_MAX,
    TRACE,
    Question,
)
from headwater.schemas.graph_answers import (
    Explanation,
    MigrationPlan,
    SimulatedRouting,
    SimulatedSynchronization,
    TokensPage,
    TracedDecision,
)
from headwater.schemas.history import Json
from headwater.streams.authoring.values import encode

A = TypeVar("A")

#: Means that no output was passed. None would be an output.
_NO_OUTPUT: Final[Any] = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionQuery(Generic[A]):
    """A request to inspect an instance.

    Attributes:
        question: What is asked.
        numbers: Query parameters.
        texts: JSON values. If there are any, the request is sent with a body that has all values.
    """

    question: Question[A]
    numbers: Mapping[str, int | None] = field(default_factory=dict)
    texts: Mapping[str, Json | None] | None = None


class InspectableInstance(ABC):
    """An instance of a graph that can be inspected.

    Its methods raise CommandRefusedError with `.code` NOT_A_GRAPH, SEQUENCE_NOT_FOUND,
    TOKEN_NOT_FOUND, NODE_NOT_FOUND or TRANSITION_NOT_FOUND; InstanceNotFoundError; and
    InstanceTerminalError for simulations of a run that has ended.
    """

    @abstractmethod
    async def inspect(self, query: InspectionQuery[A]) -> A:
        """Answer a query."""

    def in_run(self, number: int) -> "InspectableInstance":
        """Select one of its runs for inspection; the first is 0."""
        return _InRun(self, number)

    async def introspect_tokens(self, at: int | None = None) -> TokensPage:
        """Return all live tokens: their nodes, and what they wait for."""
        whole: TokensPage | None = None
        while True:
            after = None if whole is None or whole.cursor is None else int(whole.cursor)
            as_of = at if whole is None else whole.sequence
            numbers = {"at": as_of, "after": after, "pageSize": TOKENS_MAX}
            page = await self.inspect(InspectionQuery(question=TOKENS, numbers=numbers))
            tokens = page.tokens if whole is None else [*whole.tokens, *page.tokens]
            whole = msgspec.structs.replace(page, tokens=tokens)
            if whole.cursor is None:
                return whole

    async def simulate_routing(
        self,
        token: str | None = None,
        *,
        node: str | None = None,
        output: Any = _NO_OUTPUT,  # noqa: ANN401 (any JSON)
        at: int | None = None,
    ) -> SimulatedRouting:
        """Simulate the completion of a token with an output.

        Args:
            token: Id of the token.
            node: Instead of a token, its node. The token with the lowest number there is used; if
                there is none, a token that reached the node outside of all forks.
            output: Output of the task. Without one, no output mapping is applied.
            at: Sequence of the event up to which history is folded.
        """
        if (token is None) is (node is None):
            raise ValueError("expected a token or a node, found both or neither")
        encoded_output = None if output is _NO_OUTPUT else encode(output, "an output")
        texts = {"token": _text(token), "node": _text(node), "output": encoded_output}
        return await self.inspect(
            InspectionQuery(question=SIMULATE_ROUTING, numbers={"at": at}, texts=texts)
        )

    async def simulate_synchronization(
        self, token: str, transition: str, *, at: int | None = None
    ) -> SimulatedSynchronization:
        """Simulate the arrival of a token at a join by a transition.

        It does not evaluate the transition's condition; `simulate_routing` does.
        """
        texts = {"token": _text(token), "transition": _text(transition)}
        return await self.inspect(
            InspectionQuery(question=SIMULATE_SYNCHRONIZATION, numbers={"at": at}, texts=texts)
        )

    async def _simulate_migration(self, to: Json, renamed: Mapping[str, str]) -> MigrationPlan:
        """Show where the tokens of the run would be in another definition, see `migrate`.

        Args:
            to: The definition, or its version, as JSON text.
            renamed: Nodes of that definition by nodes of the run's, where they differ.
        """
        texts = {"to": to, "map": encode(dict(renamed), "map")}
        return await self.inspect(InspectionQuery(question=SIMULATE_MIGRATION, texts=texts))

    async def explain(self, at: int | None = None) -> Explanation:
        """Explain what the run waits for: `.says` in sentences, `.joins` as data."""
        return await self.inspect(InspectionQuery(question=EXPLAIN, numbers={"at": at}))

    async def draw(
        self, written: Literal["svg", "mermaid"] = "svg", *, at: int | None = None
    ) -> str:
        """Draw the graph with the tokens of the run on it."""
        question = SVG if written == "svg" else MERMAID
        return await self.inspect(InspectionQuery(question=question, numbers={"at": at}))

    async def trace(
        self, first: int = 0, last: int | None = None
    ) -> AsyncGenerator[TracedDecision]:
        """Yield how the decisions of the events from `first` to `last` came about, recomputed."""
        begin: int | None = first
        while begin is not None:
            numbers = {"from": begin, "to": last}
            page = await self.inspect(InspectionQuery(question=TRACE, numbers=numbers))
            for decision in page.decided:
                yield decision
            begin = page.next_from


class _InRun(InspectableInstance):
    """A run of an instance. Its queries carry the run's number."""

    def __init__(self, instance: InspectableInstance, number: int) -> None:
        self._instance = instance
        self._number = number

    @override
    async def inspect(self, query: InspectionQuery[A]) -> A:
        numbers = {**query.numbers, "runNumber": self._number}
        return await self._instance.inspect(replace(query, numbers=numbers))


def _text(value: str | None) -> Json | None:
    return None if value is None else encode(value, "a name")
