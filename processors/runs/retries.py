"""Times at which failed attempts are retried."""

from headwater.processors.runs.requests import RetryPolicy

#: Attempts are counted from 1; a policy without a limit has this many.
ANY_NUMBER = -1
_DELAY_MAX_MS = 365 * 86_400_000


def delay_ms(policy: RetryPolicy, retry: int) -> int:
    """Return the delay before a retry, in ms from the failure, at most a year.

    Args:
        policy: The retry policy.
        retry: Number of the retry, from 1.
    """
    match policy.backoff:
        case "constant":
            delay = policy.delay_ms
        case "linear":
            delay = policy.delay_ms * retry
        case _:
            # 2^40 ms is more than a year, so larger powers need not be computed.
            delay = policy.delay_ms * 2 ** min(retry - 1, 40)
    return min(delay, _DELAY_MAX_MS)


def retry_at_ms(policy: RetryPolicy, attempt: int, now_ms: int) -> int | None:
    """Return when a step is retried after a failed attempt (from 1), or None if it is not."""
    if policy.limit != ANY_NUMBER and attempt > policy.limit:
        return None
    return now_ms + delay_ms(policy, attempt)
