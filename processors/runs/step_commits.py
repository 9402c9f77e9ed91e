"""Commit rows of steps with SQL, and the SQL that a step may not contain."""

import re
from typing import Final, NamedTuple

import msgspec

from headwater.processors.runs.decisions import StepReturned
from headwater.processors.runs.limits import bounded
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import STATEMENT_REFUSED
from headwater.schemas.history import Failure

#: Ends the transaction that combines the SQL of a step with its commit row.
_ENDS_TRANSACTION: Final = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"}
)
#: Changes the session, in a connection that other steps use afterwards.
_CHANGES_SESSION: Final = frozenset(
    {"DEALLOCATE", "DISCARD", "LISTEN", "LOAD", "RESET", "SET", "UNLISTEN"}
)
#: Variants of SET that end with the transaction.
_LOCAL: Final = frozenset({"CONSTRAINTS", "LOCAL"})
#: SET of these would change the identity of the step.
_CHANGES_ROLE: Final = frozenset({"ROLE", "SESSION"})
#: What Postgres skips between words: a line ends at either of its line ends.
_SPACE: Final = re.compile(r"(?:[\s;]|--[^\r\n]*)+")
_WORD: Final = re.compile(r"[A-Za-z]+")
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
#: Characters of a statement in messages.
_STATEMENT_SHOWN: Final = 160


class EffectUnknown(StoreUnavailable):
    """The commit of a step's SQL was sent to Postgres, and the outcome is unknown."""


class StepId(NamedTuple):
    """Identifies a step permanently: the key of its instance, the run, and its own key there."""

    key: str
    run_number: int
    step: str


class StepCommit(msgspec.Struct, frozen=True, array_like=True):
    """A step with SQL that will take effect, or has."""

    key: str
    run_number: int
    returned: StepReturned

    @property
    def id(self) -> StepId:
        """Identity of the step."""
        return StepId(self.key, self.run_number, self.returned.step.key)


def settled(stored: StepReturned, request: StepReturned) -> StepReturned:
    """Return what to record for a returned step after its SQL took effect as `stored`.

    An earlier attempt may have been counted as failed although its SQL took effect. The result is
    that of the earlier attempt; the attempt number is that of the current one.
    """
    return msgspec.structs.replace(
        stored, step=request.step, attempt=request.attempt, statements=()
    )


def statement_name(returned: StepReturned, number: int) -> str:
    """Return how messages name a statement of a step, counted from 1."""
    text = bounded(" ".join(returned.statements[number - 1][0].split()), _STATEMENT_SHOWN)
    return f"statement {number} of {len(returned.statements)} ({text})"


def refusal(returned: StepReturned) -> Failure | None:
    """Return why the SQL of a step cannot run in the step's transaction, or None if it can.

    The statements run one by one, so the first words of every statement decide.
    """
    for number, (sql, _) in enumerate(returned.statements, start=1):
        first, second, third = _first_words(sql)
        if first in _ENDS_TRANSACTION:
            reason = "a step's statements are one transaction, which ends with the step"
        elif first == "SET" and third in _CHANGES_ROLE:
            reason = "its role reaches the tables of authors, and no others"
        elif first in _CHANGES_SESSION and second not in _LOCAL:
            reason = "other steps use the connection next; SET LOCAL ends with the step"
        elif first == "COPY":
            reason = "its rows cannot be transferred; use INSERT"
        else:
            continue
        return Failure(
            STATEMENT_REFUSED,
            f"expected SQL that may run in a step, found {first} in statement {number}: {reason}",
        )
    return None


def _first_words(sql: str) -> tuple[str, str, str]:
    first, end = _word(sql, 0)
    second, end = _word(sql, end)
    return first, second, _word(sql, end)[0]


def _word(sql: str, at: int) -> tuple[str, int]:
    """Return the next word that Postgres would read, in capitals, and where it ends."""
    while True:
        if space := _SPACE.match(sql, at):
            at = space.end()
        if not sql.startswith("/*", at):
            break
        at = _comment_end(sql, at)
    word = _WORD.match(sql, at)
    return (word[0].upper(), word.end()) if word else ("", at)


def _comment_end(sql: str, at: int) -> int:
    """Return the end of a comment that begins at `at`; comments may be nested."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(sql)
