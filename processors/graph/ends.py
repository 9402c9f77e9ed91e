"""How runs of graphs end: their tokens with them, and the workflows that tokens wait for."""

from collections.abc import Iterable
from typing import NoReturn

from headwater.processors.graph.draft import Draft
from headwater.processors.graph.state import GraphRun
from headwater.processors.runs.ends import ended_by, posts_to_end
from headwater.schemas.history import (
    Failure,
    Post,
    RunCompleted,
    RunErrored,
    RunTerminated,
    TokensCancelled,
)


class Over(Exception):
    """The run has ended in this draft: nothing more follows."""


class CannotGoOn(Exception):
    """What was decided leads nowhere: nothing of it counts, and its run fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def fail(draft: Draft, failure: Failure, settled: Iterable[int] = ()) -> NoReturn:
    """Ends a run with an error.

    Shape:  settled are tokens of which the draft has said already how they ended.
    """
    end(draft, RunErrored(failure), "the run has failed", settled)
    raise Over


def end(
    draft: Draft,
    ended: RunCompleted | RunErrored | RunTerminated,
    reason: str,
    settled: Iterable[int] = (),
    *,
    with_children: bool = True,
) -> None:
    """Ends a run, and with it its tokens and their children."""
    run = draft.run
    gone = set(settled)
    tokens = tuple(number for number in run.tokens if number not in gone)
    cancelled = isinstance(ended, RunTerminated) and ended.cancelled
    children = run.tokens if with_children else ()
    posts = end_children(run, children, "its parent has ended", cancelled=cancelled)
    if tokens:
        kept = isinstance(ended, RunErrored)
        draft.emit(TokensCancelled(tokens, reason, kept))
    draft.emit(*ended_by(run, ended, posts))


def end_children(
    run: GraphRun, numbers: Iterable[int], reason: str, *, cancelled: bool = False
) -> list[Post]:
    """Posts that end the children of those of these tokens that wait for one."""
    children = ((number, run.tokens[number].child) for number in numbers)
    return posts_to_end(run, children, reason, cancelled=cancelled)
