"""Rows of tokens as parameters of statements, and changes of tokens in Postgres.

As in `rows`, a batch has complete rows, and changes of rows that may exist. Each event of a token
sets its status; the latest status determines when it ended or is retried, and how a retry of its
run restarts it.
"""

from typing import Final

from typing_extensions import override

from headwater.processors.graph.planning import TERMINAL, TokenStatus
from headwater.projections.workflows.rows import WithError
from headwater.schemas.history import Child, Failure, Json

_WAITING: Final = TokenStatus.WAITING_FOR_SIBLINGS


class _Token(WithError, kw_only=True, omit_defaults=True, gc=False):
    """Common fields of rows and changes of tokens.

    Attributes:
        status: None if it is not known.
        retry_status: Status after a retry of the run; None if the token had ended.
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

    def set_status(
        self, status: TokenStatus, at_ms: int, retry_status: TokenStatus | None = None
    ) -> None:
        """Set the status, and clear the lease and the scheduled retry."""
        self.status = status
        self.worker = self.lease_until_ms = None
        self.updated_at_ms = at_ms
        self.completed_at_ms = at_ms if status in TERMINAL else None
        self.next_retry_at_ms = None
        self.retry_status = retry_status

    def begin_attempt(self, attempt: int, input: Json | None, at_ms: int) -> None:  # noqa: A002
        """Begin an attempt of the task."""
        self.set_status(TokenStatus.DISPATCHED, at_ms)
        self.attempts = attempt
        if input is not None:
            self.input = input

    def lease_to(self, worker: str, until_ms: int, at_ms: int) -> None:
        """Lease an attempt to an external worker."""
        self.set_status(TokenStatus.EXECUTING, at_ms)
        self.worker, self.lease_until_ms = worker, until_ms

    def complete(self, result: Json, at_ms: int) -> None:
        """Set the result."""
        self.set_status(TokenStatus.COMPLETED, at_ms)
        self.result = result
        self.fail(None)

    def wait(self, status: TokenStatus, until_ms: int | None, at_ms: int) -> None:
        """Let the token wait for siblings or a child."""
        self.set_status(status, at_ms)
        if until_ms is not None:
            self.wake_at_ms = until_ms

    def start(self, child: Child) -> None:
        """Set the child workflow that the token has started."""
        self.child_workflow_name, self.child_instance_id = child.workflow, child.instance_id

    def cancel(self, reason: str, at_ms: int, *, kept: bool) -> None:
        """End the token. If kept, a retry of the run restarts it or lets it wait as before."""
        retry_status = _WAITING if self.status is _WAITING else TokenStatus.PENDING
        self.set_status(TokenStatus.CANCELLED, at_ms, retry_status if kept else None)
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
    """A change of a token that Postgres may have.

    Attributes:
        settled: Whether it has a new error.
        kept: Whether its status in Postgres determines how a retry restarts it.
    """

    settled: bool = False
    kept: bool = False

    @override
    def set_status(
        self, status: TokenStatus, at_ms: int, retry_status: TokenStatus | None = None
    ) -> None:
        """Set the status, and clear the lease and the scheduled retry."""
        super().set_status(status, at_ms, retry_status)
        self.kept = False

    @override
    def cancel(self, reason: str, at_ms: int, *, kept: bool) -> None:
        """End the token. If kept, a retry of the run restarts it or lets it wait as before."""
        is_known = self.status is not None
        super().cancel(reason, at_ms, kept=kept and is_known)
        self.kept = kept and not is_known

    @override
    def fail(self, failure: Failure | None) -> None:
        """Set or clear the error."""
        super().fail(failure)
        self.settled = True
