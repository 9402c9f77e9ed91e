"""Rows of tokens as the statements take them, and changes of tokens that Postgres has.

As with steps (`rows`), a batch has rows of which all is known, and changes of rows that may be
there. Each event about a token gives it a status, and the latest decides what belongs to a status:
when it ended or is tried again, and what a retry of its run makes of it.
"""

from typing import Final

from typing_extensions import override

from headwater.processors.graph.tokens import TERMINAL, TokenStatus
from headwater.projections.workflows.rows import WithError
from headwater.schemas.history import Child, Failure, Json

__all__ = ["TokenChange", "TokenRow"]

_WAITS: Final = TokenStatus.WAITING_FOR_SIBLINGS


class _Token(WithError, kw_only=True, omit_defaults=True, gc=False):
    """What rows and changes of tokens have in common.

    Shape:  status is None where nothing is known of it yet; retry_status is the status with which
            a retry takes it up, None for one that had ended.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    id: int
    status: TokenStatus | None = None
    attempts: int | None = None
    input: Json | None = None
    result: Json | None = None
    next_retry_at_ms: int | None = None
    wake_at_ms: int | None = None
    reason: str | None = None
    retry_status: TokenStatus | None = None
    child_workflow_name: str | None = None
    child_instance_id: str | None = None
    idempotency_token: str | None = None
    worker: str | None = None
    lease_until_ms: int | None = None
    updated_at_ms: int
    completed_at_ms: int | None = None
    offset: int

    def become(self, status: TokenStatus, at_ms: int, again: TokenStatus | None = None) -> None:
        """Gives the token a status; no attempt of it waits for its time, and nobody has it."""
        self.status = status
        self.worker = self.lease_until_ms = None
        self.updated_at_ms = at_ms
        self.completed_at_ms = at_ms if status in TERMINAL else None
        self.next_retry_at_ms = None
        self.retry_status = again

    def begin_attempt(self, attempt: int, given: Json | None, at_ms: int) -> None:
        """Begins an attempt of its task."""
        self.become(TokenStatus.DISPATCHED, at_ms)
        self.attempts = attempt
        if given is not None:
            self.input = given

    def give(self, worker: str, until_ms: int, at_ms: int) -> None:
        """Gives an attempt to a worker outside."""
        self.become(TokenStatus.EXECUTING, at_ms)
        self.worker, self.lease_until_ms = worker, until_ms

    def complete(self, result: Json, at_ms: int) -> None:
        """Gives the token its result."""
        self.become(TokenStatus.COMPLETED, at_ms)
        self.result = result
        self.fail(None)

    def wait(self, status: TokenStatus, until_ms: int | None, at_ms: int) -> None:
        """Has the token wait, for siblings or for a child."""
        self.become(status, at_ms)
        if until_ms is not None:
            self.wake_at_ms = until_ms

    def start(self, child: Child) -> None:
        """Names the workflow that the token has started."""
        self.child_workflow_name, self.child_instance_id = child.workflow, child.instance_id

    def cancel(self, reason: str, at_ms: int, *, kept: bool) -> None:
        """Ends the token; a retry takes up a kept one as one that waits, if it waited."""
        again = _WAITS if self.status is _WAITS else TokenStatus.PENDING
        self.become(TokenStatus.CANCELLED, at_ms, again if kept else None)
        self.reason = reason


class TokenRow(_Token, kw_only=True, omit_defaults=True, gc=False):
    """A token that was created in this batch."""

    node_ref: str
    task: str | None
    subworkflow: str | None
    path_id: str
    parent_token_id: int | None
    sibling_group: str | None
    branch_index: int
    branch_total: int
    iteration_counts: Json
    created_at_ms: int


class TokenChange(_Token, kw_only=True, omit_defaults=True, gc=False):
    """What becomes of a token that Postgres may have.

    Shape:  `settled` if its error is new; `kept` if Postgres knows whether it waited when its run
            failed: as what a retry takes it up follows from that.
    """

    settled: bool = False
    kept: bool = False

    @override
    def become(self, status: TokenStatus, at_ms: int, again: TokenStatus | None = None) -> None:
        """Gives the token a status; no attempt of it waits for its time, and nobody has it."""
        super().become(status, at_ms, again)
        self.kept = False

    @override
    def cancel(self, reason: str, at_ms: int, *, kept: bool) -> None:
        """Ends the token; a retry takes up a kept one as one that waits, if it waited."""
        is_known = self.status is not None
        super().cancel(reason, at_ms, kept=kept and is_known)
        self.kept = kept and not is_known

    @override
    def fail(self, failure: Failure | None) -> None:
        """Sets or takes away the error."""
        super().fail(failure)
        self.settled = True
