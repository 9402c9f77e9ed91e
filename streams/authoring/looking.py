"""What can be asked of an instance of a graph: the same words for a client and for a test.

Nothing of this changes anything. Whoever answers folds the history of a run up to `at`, the number
of an event within it; without it, up to now. The run is the current one, or that of `in_run`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from typing_extensions import override

from headwater.schemas.history import Json
from headwater.schemas.introspection import (
    Explanation,
    SimulatedRouting,
    SimulatedSynchronization,
    TokensPage,
    TracedDecision,
    TracePage,
)
from headwater.streams.authoring.values import encode

A = TypeVar("A")

#: Tokens, or decisions, that one answer has.
TOKENS_MAX: Final = 1_000
TRACED_MAX: Final = 100
#: Stands for an output that is not given: None is one.
_NO_OUTPUT: Final[Any] = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[A]):
    """A question: the end of its path, what it is answered with, and what goes with it.

    Shape:  numbers go into the query; one that has texts, which are JSON, has all in its body.
    """

    path: str
    answer: type[A]
    numbers: Mapping[str, int | None] = field(default_factory=dict)
    texts: Mapping[str, Json | None] | None = None


class LookedInto(ABC):
    """An instance of a graph that can be looked into.

    Errors: CommandRefusedError with `.code` NOT_A_GRAPH, SEQUENCE_NOT_FOUND, TOKEN_NOT_FOUND,
            NODE_NOT_FOUND, TRANSITION_NOT_FOUND; InstanceNotFoundError; InstanceTerminalError for
            what would follow in a run that has ended.
    """

    @abstractmethod
    async def ask(self, question: Question[A]) -> A:
        """Answers a question."""

    def in_run(self, number: int) -> "LookedInto":
        """One of its runs, to be looked into in the same way; the first is 0."""
        return _InRun(self, number)

    async def introspect_tokens(self, at: int | None = None) -> TokensPage:
        """All tokens that live: where each is, and what it waits for."""
        whole: TokensPage | None = None
        while True:
            after = None if whole is None or whole.cursor is None else int(whole.cursor)
            as_of = at if whole is None else whole.sequence
            numbers = {"at": as_of, "after": after, "pageSize": TOKENS_MAX}
            page = await self.ask(Question(path="tokens", answer=TokensPage, numbers=numbers))
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
        """What would follow if a token completed, with this output.

        Shape:  of a node, its token with the lowest number; where none is, one that came there
                outside of all forks. Without an output nothing is mapped.
        """
        if (token is None) is (node is None):
            raise ValueError("expected a token or a node, found both or neither")
        given = None if output is _NO_OUTPUT else encode(output, "an output")
        texts = {"token": _text(token), "node": _text(node), "output": given}
        return await self.ask(
            Question(
                path="simulate-routing", answer=SimulatedRouting, numbers={"at": at}, texts=texts
            )
        )

    async def simulate_synchronization(
        self, token: str, transition: str, *, at: int | None = None
    ) -> SimulatedSynchronization:
        """What would be decided if a token came by a transition to where its branch meets others.

        Whether the conditions let it come says `simulate_routing`.
        """
        texts = {"token": _text(token), "transition": _text(transition)}
        return await self.ask(
            Question(
                path="simulate-synchronization",
                answer=SimulatedSynchronization,
                numbers={"at": at},
                texts=texts,
            )
        )

    async def explain(self, at: int | None = None) -> Explanation:
        """Why it stands where it stands: `.says` in sentences, `.joins` as data."""
        return await self.ask(Question(path="explain", answer=Explanation, numbers={"at": at}))

    async def draw(
        self, written: Literal["svg", "mermaid"] = "svg", *, at: int | None = None
    ) -> str:
        """Its graph as a picture, with the tokens of its run on it."""
        return await self.ask(Question(path=written, answer=str, numbers={"at": at}))

    async def trace(
        self, first: int = 0, last: int | None = None
    ) -> AsyncGenerator[TracedDecision]:
        """How the decisions came about that begin from one event to another, made again."""
        begin: int | None = first
        while begin is not None:
            numbers = {"from": begin, "to": last}
            page = await self.ask(Question(path="trace", answer=TracePage, numbers=numbers))
            for each in page.decided:
                yield each
            begin = page.next_from


class _InRun(LookedInto):
    """A run of an instance: what is asked of it names its number."""

    def __init__(self, instance: LookedInto, number: int) -> None:
        self._instance = instance
        self._number = number

    @override
    async def ask(self, question: Question[A]) -> A:
        numbers = {**question.numbers, "runNumber": self._number}
        return await self._instance.ask(replace(question, numbers=numbers))


def _text(value: str | None) -> Json | None:
    return None if value is None else encode(value, "a name")
