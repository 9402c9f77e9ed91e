"""Request ids: made here as ULIDs, or taken from a caller who sent a usable one."""

import re
from collections.abc import Callable
from typing import Final

#: Long enough for a ULID, a UUID, a W3C trace id or a proxy's own form; nothing that could break a
#: header, a log line or a URL.
_USABLE: Final = re.compile(rb"[0-9A-Za-z][0-9A-Za-z._:-]{7,63}").fullmatch

_ALPHABET: Final = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: Every byte as one character: its five low bits.
_CHARACTER_OF_BYTE: Final = bytes(_ALPHABET[byte & 31] for byte in range(256))
_TIME_CHARACTERS: Final = 10
_RANDOM_CHARACTERS: Final = 16
#: Draws of randomness that `drawn_ahead` makes at once.
_DRAWN: Final = 256


def usable(offered: bytes | None) -> str | None:
    """The caller's own request id, if it can be used as it is."""
    return offered.decode() if offered and _USABLE(offered) else None


def ulid_source(clock: Callable[[], int], random: Callable[[int], bytes]) -> Callable[[], str]:
    """A source of ULIDs: 48 bits of time, then 80 random ones, in Crockford's base 32.

    Shape:  a clock in Unix milliseconds, and random bytes by their number, of which five bits each
            are taken -> 26 characters that sort by time.
    """
    part_ms, part = -1, ""

    def new() -> str:
        # Thousands are made a second: the part that changes once a millisecond is kept.
        nonlocal part_ms, part
        now_ms = clock()
        if now_ms != part_ms:
            part_ms, part = now_ms, _time_part(now_ms)
        return part + random(_RANDOM_CHARACTERS).translate(_CHARACTER_OF_BYTE).decode()

    return new


def drawn_ahead(random: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Randomness of many ids, drawn at once: each system call lets the server's threads in between.

    Shape:  asked for the same count each time, by one thread of a process that never forks: nobody
            else may have what lies ready.
    """
    ready: list[bytes] = []

    def draw(count: int) -> bytes:
        if not ready:
            drawn = random(_DRAWN * count)
            ready.extend(drawn[at : at + count] for at in range(0, len(drawn), count))
        return ready.pop()

    return draw


def _time_part(at_ms: int) -> str:
    shifts = range(5 * (_TIME_CHARACTERS - 1), -1, -5)
    return bytes(_ALPHABET[at_ms >> shift & 31] for shift in shifts).decode()
