"""The keys of an issuer, wherever they are: read when they are needed, kept, and read again.

Keys are read with the first token. Ten minutes later they are read anew, and earlier when a token
names a key that is not among them: the issuer may have changed its keys. It is asked at most once
in thirty seconds, whatever tokens say, and by one request while others wait. While it does not
answer, what it said last counts for an hour; then, as with a key that is not known, nobody can tell
whether a token is good, which is not the same as a bad one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import httpx

from headwater.gateway.tokens.key_set import (
    KEY_SET_BYTES_MAX,
    KeySetInvalid,
    TokenKey,
    read_key_set,
)
from headwater.schemas.errors import Disposition, HeadwaterError

_LOG: Final = logging.getLogger("headwater.gateway")

FRESH_S: Final = 600.0
KEPT_S: Final = 3600.0
ASKED_EVERY_S: Final = 30.0
_TIMEOUT_S: Final = 3.0

#: Reads the document.
ReadKeys: TypeAlias = Callable[[], Awaitable[bytes]]


class KeysUnavailable(HeadwaterError):
    """The keys of users' tokens are not there, so no token can be checked."""

    disposition = Disposition.RETRY
    code = "jwks_unavailable"


class KeySource:
    """The keys of one issuer.

    Units:  the clock is steady, in seconds.
    """

    def __init__(self, read: ReadKeys, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._keys: tuple[TokenKey, ...] = ()
        self._read_at = self._asked_at = float("-inf")
        #: Why the last attempt to read them failed; None after one that did not.
        self._failure: str | None = None
        self._one_at_a_time = asyncio.Lock()

    async def find(self, algorithm: str, kid: str | None) -> TokenKey | None:
        """The key that a token names; without a name, the only one that fits.

        Errors: KeysUnavailable.
        """
        if self._age_s() > FRESH_S:
            await self._ask()
        found = self._found(algorithm, kid)
        if found is None:
            await self._ask()
            found = self._found(algorithm, kid)
        if self._age_s() > KEPT_S or (found is None and self._failure is not None):
            raise KeysUnavailable(
                f"expected the keys of users' tokens, found: {self._failure}; try again later"
            )
        return found

    def _age_s(self) -> float:
        return self._clock() - self._read_at

    def _found(self, algorithm: str, kid: str | None) -> TokenKey | None:
        fitting = [key for key in self._keys if key.algorithm == algorithm]
        if kid is not None:
            fitting = [key for key in fitting if key.kid == kid]
        return fitting[0] if len(fitting) == 1 else None

    async def _ask(self) -> None:
        """Reads the keys, unless that was tried a moment ago."""
        async with self._one_at_a_time:
            if self._clock() - self._asked_at < ASKED_EVERY_S:
                return
            try:
                self._keys = read_key_set(await self._read())
            except (KeySetInvalid, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
                self._failure = str(error) or type(error).__name__
                _LOG.warning("the keys of users' tokens could not be read: %s", self._failure)
            else:
                self._failure = None
                self._read_at = self._clock()
            self._asked_at = self._clock()


def keys_at(address: str) -> ReadKeys:
    """What reads the document at a URL, or in a file."""
    if address.startswith(("https://", "http://")):
        return lambda: _fetched(address)
    return lambda: asyncio.to_thread(_of_file, Path(address))


async def _fetched(url: str) -> bytes:
    """A document over HTTP, no larger than it may be.

    Errors: httpx.HTTPError, KeySetInvalid.
    """
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx.AsyncClient(timeout=_TIMEOUT_S) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise KeySetInvalid(f"expected a JWKS, found the answer {answer.status_code}")
            document = b""
            async for piece in answer.aiter_bytes():
                document += piece
                if len(document) > KEY_SET_BYTES_MAX:
                    break
            return document
    except TimeoutError:
        raise KeySetInvalid(f"expected a JWKS within {_TIMEOUT_S:g} s, found none") from None


def _of_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEY_SET_BYTES_MAX + 1)
