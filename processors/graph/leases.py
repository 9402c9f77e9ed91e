"""What becomes of a job whose worker is not heard of any more, or takes too long.

A lease that runs out says nothing of the job: its worker may have been stopped, or cut off. So the
next attempt may be taken at once, and the retries of the node are not for it. But a job can also be
what ends its workers, one after the other: so many leases may run out, then its run fails.
"""

from typing import Final

from headwater.processors.graph.draft import Draft
from headwater.processors.graph.ends import fail
from headwater.processors.graph.state import Lease, LiveToken
from headwater.processors.runs.requests import RetryPolicy
from headwater.processors.runs.retries import retry_at_ms
from headwater.schemas.failures import LEASE_EXPIRED, STEP_TIMEOUT
from headwater.schemas.history import Failure, LeaseExpired, TokenFailed

#: Leases of one token that may run out. Nobody stops the workers of a job so often while it is
#: theirs; and that many of them are lost before somebody has to look.
LEASES_LOST_MAX: Final = 10


def lease_over(draft: Draft, token: LiveToken, lease: Lease, policy: RetryPolicy) -> None:
    """Takes a job from its worker when its time is over.

    Errors: Over, when its run fails with it.
    """
    attempt = token.attempts + 1
    if lease.ends_at_ms == lease.until_ms:
        failure = _too_long(draft, token, lease)
        again = retry_at_ms(policy, attempt - token.lost, draft.now_ms)
        draft.emit(TokenFailed(token.number, attempt, failure, again, timed_out=True))
        if again is None:
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


def _too_long(draft: Draft, token: LiveToken, lease: Lease) -> Failure:
    limit_ms = draft.graph.node(token.node).timeout_ms
    return Failure(
        STEP_TIMEOUT,
        f'expected the job of node "{token.node}" to end within {limit_ms} ms, found it still with '
        f'"{lease.worker}" in attempt {token.attempts + 1}',
    )
