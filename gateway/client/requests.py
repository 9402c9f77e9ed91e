"""Requests as data: ids, paths, queries and bodies, and whether to repeat them."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import quote

#: A server that names a longer delay is not retried.
_RETRY_AFTER_MAX_S: Final = 60.0

#: Seconds that a replay of runs may take, on top of the usual timeout; its setting may be larger.
REPLAY_TIMEOUT_S: Final = 120.0

#: Statuses of a failure that may be temporary.
_LATER: Final = frozenset({408, 429, 502, 503, 504})
#: Statuses, and codes of a 503, that mean that the server did not begin the request.
_NOT_BEGUN: Final = frozenset({408, 429})
_NOT_BEGUN_CODES: Final = frozenset({"audit_unavailable", "overloaded", "not_yet_readable"})
#: Codes of a 500 that mean that the request was carried out, and its response was lost.
_UNKNOWN_CODES: Final = frozenset({"result_not_recorded"})


class Repeat(Enum):
    """The effect of sending a request twice."""

    READ = auto()
    #: An idempotent write.
    SAFE = auto()
    #: A write that would be applied twice.
    UNSAFE = auto()


class Failure(Enum):
    """What is known about a request that had no usable answer."""

    NOT_TAKEN = auto()
    UNKNOWN = auto()
    #: Another attempt would have the same answer.
    FINAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often to repeat a request, and how long to wait in between.

    The delay before repeat k (0, 1, …) is random, from 0 to base_s · 2^k, at most longest_s:
    "full jitter", which spreads clients that failed together.

    Attributes:
        retries: Largest number of repeats.
        base_s: Seconds.
        longest_s: Seconds.
    """

    retries: int = 3
    base_s: float = 0.25
    longest_s: float = 10.0


def failure_of(status: int, code: str) -> Failure:
    """Classify an answer that is no success."""
    if status in _NOT_BEGUN or code in _NOT_BEGUN_CODES:
        return Failure.NOT_TAKEN
    if status in _LATER or code in _UNKNOWN_CODES:
        return Failure.UNKNOWN
    return Failure.FINAL


def may_repeat(repeat: Repeat, failure: Failure) -> bool:
    """Return whether a request may be repeated after a failure.

    A read may always be repeated. A write may be repeated if it certainly had no effect (no
    connection was made, or the server was too busy to begin), or if it is idempotent. Otherwise the
    error is raised: only the caller knows what a second attempt would do.
    """
    if failure is Failure.UNKNOWN:
        return repeat is not Repeat.UNSAFE
    return failure is Failure.NOT_TAKEN


def delay_s(
    policy: Policy, repeats: int, drawn: float, retry_after_s: float | None = None
) -> float | None:
    """Return the delay before the next attempt in seconds; None for no further attempt.

    Args:
        policy: How often and how long.
        repeats: Repeats so far.
        drawn: Random number, 0 <= drawn < 1.
        retry_after_s: Seconds that the server named.
    """
    if repeats >= policy.retries or (retry_after_s or 0.0) > _RETRY_AFTER_MAX_S:
        return None
    backoff = drawn * min(policy.longest_s, policy.base_s * 2.0**repeats)
    return max(backoff, retry_after_s or 0.0)


# -- request ids

#: Long enough for a ULID, a UUID, a W3C trace id or a proxy's own format; no characters that could
#: break a header, a log line or a URL.
_USABLE: Final = re.compile(rb"[0-9A-Za-z][0-9A-Za-z._:-]{7,63}").fullmatch

_ALPHABET: Final = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: A character for every byte: that of its five low bits.
_CHARACTER_OF_BYTE: Final = bytes(_ALPHABET[byte & 31] for byte in range(256))
_TIME_CHARACTERS: Final = 10
_RANDOM_CHARACTERS: Final = 16
#: Ids whose random bytes `buffered_random` draws at once.
_BUFFERED_IDS: Final = 256


def usable(offered: bytes | None) -> str | None:
    """Return the caller's own request id, if it is valid."""
    return offered.decode() if offered and _USABLE(offered) else None


def ulid_source(clock: Callable[[], int], random: Callable[[int], bytes]) -> Callable[[], str]:
    """Return a source of ULIDs: 48 bits of time, then 80 random ones, in Crockford's base 32.

    Args:
        clock: Unix milliseconds.
        random: Returns a number of random bytes, of which five bits each are used.

    Returns:
        A function that returns 26 characters, which sort by time.
    """
    part_ms, part = -1, ""

    def new() -> str:
        # Thousands are made a second: cache the part that changes once a millisecond.
        nonlocal part_ms, part
        now_ms = clock()
        if now_ms != part_ms:
            part_ms, part = now_ms, _time_part(now_ms)
        return part + random(_RANDOM_CHARACTERS).translate(_CHARACTER_OF_BYTE).decode()

    return new


def buffered_random(random: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return a random source that draws for many ids at once.

    Every system call releases the GIL, and lets other threads of the server run first.

    The source must be called with the same count each time, by one thread of a process that does
    not fork: otherwise random bytes could be used twice.
    """
    ready: list[bytes] = []

    def draw(count: int) -> bytes:
        if not ready:
            block = random(_BUFFERED_IDS * count)
            ready.extend(block[at : at + count] for at in range(0, len(block), count))
        return ready.pop()

    return draw


def _time_part(at_ms: int) -> str:
    shifts = range(5 * (_TIME_CHARACTERS - 1), -1, -5)
    return bytes(_ALPHABET[at_ms >> shift & 31] for shift in shifts).decode()


# -- paths


class EmptyName(ValueError):
    """A name or an id is empty."""


def path(*segments: str) -> str:
    """Return a path below the base URL.

    Raises:
        EmptyName: A segment is empty, and the path would be another one.
        TypeError: A segment is no text.
    """
    untyped: tuple[object, ...] = segments
    for segment in untyped:
        if not isinstance(segment, str):
            raise TypeError(f"expected names and ids to be text, found {segment!r:.80}")
    if not all(segments):
        raise EmptyName("expected a name or an id, found nothing")
    # A segment of only dots would be another path, too.
    quoted = (quote(segment, safe="@") for segment in segments)
    return "/" + "/".join(q if q.strip(".") else q.replace(".", "%2E") for q in quoted)


# -- requests and answers

#: Parameters by name. None is left out; a list is repeated as a parameter for every value.
Query: TypeAlias = dict[str, str | int | bool | list[str] | None]


#: Pattern of the service.
_IDEMPOTENCY_KEY: Final = re.compile("[!-~]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, and whether it is safe to repeat.

    Attributes:
        waits_s: Seconds that the server may wait before it answers, on top of the usual timeout.
    """

    method: str
    path: str
    repeat: Repeat
    query: Mapping[str, str | list[str]] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    waits_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of the server at `url`.

    Attributes:
        status: HTTP status.
        headers: Headers by name, in lower case.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def position(self) -> str:
        """Positions of the outcome in the log, as the header has them."""
        return self.headers.get("headwater-position", "")

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document of a failure; empty if the answer has none."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        is_problem = isinstance(document, dict) and isinstance(document.get("code"), str)
        return document if is_problem else {}


def json_object(**texts: str | None) -> str:
    """Return a JSON object of members that are JSON texts already; None is left out."""
    present = {name: text for name, text in texts.items() if text is not None}
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in present.items()) + "}"


def idempotency_key(key: str) -> str:
    """Return a valid idempotency key.

    An empty key is refused: the request would be sent without one, and be done again when repeated.

    Raises:
        ValueError: The service would refuse the key.
    """
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise ValueError(
            "expected an idempotency key of 1 to 255 printable ASCII characters without spaces, "
            f"found {key[:60]!r}"
        )
    return key


def encoded_query(query: Query) -> dict[str, str | list[str]]:
    """Return a query as it is sent."""
    return {name: _encoded(value) for name, value in query.items() if value is not None}


def _encoded(value: str | int | list[str]) -> str | list[str]:
    if isinstance(value, list):
        return value
    return json.dumps(value) if isinstance(value, bool) else str(value)
