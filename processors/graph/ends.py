"""End graph runs, their tokens and the child workflows that tokens wait for."""

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


class RunOver(Exception):
    """The run has ended in this draft: nothing follows."""


class CannotContinue(Exception):
    """A decision cannot be carried out: its events are discarded and the run fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def fail(draft: Draft, failure: Failure, settled: Iterable[int] = ()) -> NoReturn:
    """End a run with an error.

    Args:
        draft: Draft of the run.
        failure: Error of the run.
        settled: Tokens whose end the draft has recorded already.

    Raises:
        RunOver: Always.
    """
    end(draft, RunErrored(failure), "the run has failed", settled)
    raise RunOver


def end(
    draft: Draft,
    ended: RunCompleted | RunErrored | RunTerminated,
    reason: str,
    settled: Iterable[int] = (),
    *,
    with_children: bool = True,
) -> None:
    """End a run, its tokens and their children."""
    run = draft.run
    settled_numbers = set(settled)
    tokens = tuple(number for number in run.tokens if number not in settled_numbers)
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
    """Return posts that end the children of those of `numbers` that wait for one."""
    children = ((number, run.tokens[number].child) for number in numbers)
    return posts_to_end(run, children, reason, cancelled=cancelled)
