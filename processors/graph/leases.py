"""Handle a job whose worker lost contact or takes too long.

An expired lease says nothing about the job: its worker may have been stopped or disconnected. So
the next attempt is available at once, and does not use up the node's retries. But a job can also
crash its workers one after the other; after a number of expired leases its run fails.
"""

from typing import Final

from headwater.processors.graph.draft import Draft
from headwater.processors.graph.ends import fail
from headwater.processors.graph.state import Lease, LiveToken
from headwater.processors.runs.requests import RetryPolicy
from headwater.processors.runs.retries import retry_at_ms
from headwater.schemas.failures import LEASE_EXPIRED, STEP_TIMEOUT
from headwater.schemas.history import Failure, LeaseExpired, TokenFailed

#: Expired leases of one token before its run fails. Deployments and restarts do not stop the
#: workers of one job this often, and a job that crashes its workers stops at this number.
LEASES_LOST_MAX: Final = 10


def expire_lease(draft: Draft, token: LiveToken, lease: Lease, policy: RetryPolicy) -> None:
    """Take a job from its worker when its time is over.

    Raises:
        RunOver: The run fails with it.
    """
    attempt = token.attempts + 1
    if lease.ends_at_ms == lease.until_ms:
        failure = _timeout_failure(draft, token, lease)
        retry_ms = retry_at_ms(policy, attempt - token.lost, draft.now_ms)
        draft.emit(TokenFailed(token.number, attempt, failure, retry_ms, timed_out=True))
        if retry_ms is None:
            fail(draft, failure, (token.number,))
        return
    lost = token.lost + 1
    failure = Failure(
        LEASE_EXPIRED,
        f'expected "{lease.worker}" to end the job of node "{token.node}", or to extend its lease, '
        f"found attempt {attempt} still with it when that ran out, {lost} of {LEASES_LOST_MAX} "
        "times",
    )
    if lost < LEASES_LOST_MAX:
        draft.emit(LeaseExpired(token.number, attempt, failure))
        return
    draft.emit(TokenFailed(token.number, attempt, failure, timed_out=True))
    fail(draft, failure, (token.number,))


def _timeout_failure(draft: Draft, token: LiveToken, lease: Lease) -> Failure:
    limit_ms = draft.graph.node(token.node).timeout_ms
    return Failure(
        STEP_TIMEOUT,
        f'expected the job of node "{token.node}" to end within {limit_ms} ms, found it still with '
        f'"{lease.worker}" in attempt {token.attempts + 1}',
    )
