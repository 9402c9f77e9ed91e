"""Request ids: new ULIDs, or valid ids of callers."""

import re
from collections.abc import Callable
from typing import Final

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
