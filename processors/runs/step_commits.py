"""Steps whose SQL takes effect: what their commit rows say, and which SQL a step may not hold."""

import re
from typing import Final, NamedTuple

import msgspec

from headwater.processors.runs.requests import StepReturned
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import STATEMENT_REFUSED
from headwater.schemas.history import Failure

#: Ends the transaction, and so what holds the SQL of a step and its commit row together.
_ENDS_TRANSACTION: Final = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"}
)
#: Outlives the transaction, in a connection that other steps use after it.
_CHANGES_SESSION: Final = frozenset(
    {"DEALLOCATE", "DISCARD", "LISTEN", "LOAD", "RESET", "SET", "UNLISTEN"}
)
#: A SET that ends with the transaction.
_LOCAL: Final = frozenset({"CONSTRAINTS", "LOCAL"})
#: What such a SET may not set: who the step is.
_CHANGES_ROLE: Final = frozenset({"ROLE", "SESSION"})
#: What Postgres passes over between words: a line ends at either of its ends.
_SPACE: Final = re.compile(r"(?:[\s;]|--[^\r\n]*)+")
_WORD: Final = re.compile(r"[A-Za-z]+")
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


class EffectUnknown(StoreUnavailable):
    """Postgres was asked to commit the SQL of a step, and nobody knows what came of it."""


class StepId(NamedTuple):
    """Names a step for all time: the key of its instance, the run, and its own key there."""

    key: str
    run_number: int
    step: str


class StepCommit(msgspec.Struct, frozen=True, array_like=True):
    """A step whose SQL is to take effect, or has."""

    key: str
    run_number: int
    returned: StepReturned

    @property
    def id(self) -> StepId:
        """The step."""
        return StepId(self.key, self.run_number, self.returned.step.key)


def settled(stored: StepReturned, asked: StepReturned) -> StepReturned:
    """What is to be recorded of a step whose SQL took effect as `stored`, now that it has returned.

    An earlier attempt may have been counted as failed while its SQL took effect: the result is that
    attempt's, the attempt that ends with it the one under way.
    """
    return msgspec.structs.replace(stored, step=asked.step, attempt=asked.attempt, statements=())


def refusal(returned: StepReturned) -> Failure | None:
    """Says why the SQL of a step cannot run in the step's transaction, if it cannot.

    The statements run one by one, so the first words of each decide.
    """
    for number, (sql, _) in enumerate(returned.statements, start=1):
        first, second, third = _first_words(sql)
        if first in _ENDS_TRANSACTION:
            usual = "a step's statements are one transaction, which ends with the step"
        elif first == "SET" and third in _CHANGES_ROLE:
            usual = "its role reaches the tables of authors, and no others"
        elif first in _CHANGES_SESSION and second not in _LOCAL:
            usual = "other steps use the connection next; SET LOCAL ends with the step"
        elif first == "COPY":
            usual = "nobody could send or take its rows; use INSERT"
        else:
            continue
        return Failure(
            STATEMENT_REFUSED,
            f"expected SQL that may run in a step, found {first} in statement {number}: {usual}",
        )
    return None


def _first_words(sql: str) -> tuple[str, str, str]:
    first, end = _word(sql, 0)
    second, end = _word(sql, end)
    return first, second, _word(sql, end)[0]


def _word(sql: str, at: int) -> tuple[str, int]:
    """The word that Postgres would read next, in capitals, and where it ends."""
    while True:
        if space := _SPACE.match(sql, at):
            at = space.end()
        if not sql.startswith("/*", at):
            break
        at = _comment_end(sql, at)
    word = _WORD.match(sql, at)
    return (word[0].upper(), word.end()) if word else ("", at)


def _comment_end(sql: str, at: int) -> int:
    """Where a comment ends that begins at `at`; comments hold comments."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(sql)
