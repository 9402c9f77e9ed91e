"""Limits of requests by key: a fixed window of a minute for each key, in memory.

Every process counts on its own, so N processes allow up to N times as many requests. The fields
are those of draft-ietf-httpapi-ratelimit-headers-10.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Any, Final, NamedTuple, cast

from litestar.types import Scope

from headwater.gateway.api.authentication import Caller
from headwater.gateway.api.problems import Problem

_WINDOW_S: Final = 60
#: Keys with a window; a window takes about 200 bytes. More than the keys that a project may have.
_KEYS_MAX: Final = 10_000
#: Key of the scope with the header fields of a request's limit.
_FIELDS: Final = "headwater.rate_limit"


class _Window(NamedTuple):
    begin_ms: int
    requests: int


class RateLimits:
    """Counts the requests of keys, and refuses those above the limit.

    Args:
        default: Requests per minute of a key without a limit of its own; 0 for any number.
        clock: Returns Unix milliseconds.
    """

    def __init__(self, default: int, clock: Callable[[], int]) -> None:
        self._default = default
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Number of keys in memory."""
        return len(self._windows)

    def count(self, scope: Scope, caller: Caller) -> None:
        """Count a request of a key.

        Raises:
            Problem: The key has made as many requests in this minute as it may.
        """
        limit = caller.rate_limit or self._default
        if not limit:
            return
        now_ms = self._clock()
        window = self._windows.pop(caller.key_id, _Window(now_ms, 0))
        if not 0 <= now_ms - window.begin_ms < _WINDOW_S * 1000:  # Also if the clock is set back.
            window = _Window(now_ms, 0)
        count = min(window.requests + 1, limit + 1)
        self._windows[caller.key_id] = window._replace(requests=count)
        if len(self._windows) > _KEYS_MAX:
            self._windows.popitem(last=False)
        reset_s = ceil((window.begin_ms - now_ms) / 1000) + _WINDOW_S
        fields = {
            "ratelimit-policy": f'"key";q={limit};w={_WINDOW_S}',
            "ratelimit": f'"key";r={max(0, limit - count)};t={reset_s}',
        }
        cast("dict[str, Any]", scope)[_FIELDS] = fields
        if count > limit:
            raise Problem(
                "too_many_requests",
                f"expected at most {limit} requests a minute of the key {caller.key_id}, found "
                f"more; try again in {reset_s} s",
                headers={"retry-after": str(reset_s)},
            )


def rate_fields(scope: Scope) -> dict[str, str]:
    """Return the header fields of the limit of a request's key; none if it has no limit."""
    fields: dict[str, str] = cast("dict[str, Any]", scope).get(_FIELDS, {})
    return fields
