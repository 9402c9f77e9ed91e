"""Cache of the keys of an issuer, read from a URL or a file.

Keys are read when the first token arrives. They are read again after ten minutes, and earlier when
a token names an unknown key, because the issuer may have rotated its keys. There is at most one
read in thirty seconds; concurrent requests wait for it. While the issuer is unavailable, cached
keys stay valid for an hour. After that, or if a token names an unknown key, tokens can be neither
accepted nor rejected, and `KeysUnavailable` is raised.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import httpx2

from headwater.gateway.api.tokens.key_set import (
    KEY_SET_BYTES_MAX,
    KeySetInvalid,
    TokenKey,
    read_key_set,
)
from headwater.schemas.errors import Disposition, HeadwaterError

_LOG: Final = logging.getLogger("headwater.gateway")

#: Age in seconds after which keys are read again.
FRESH_S: Final = 600.0
#: Age in seconds after which keys are no longer used.
EXPIRED_AFTER_S: Final = 3600.0
#: Least seconds between two reads.
READ_INTERVAL_S: Final = 30.0
_TIMEOUT_S: Final = 3.0

#: Reads the JWKS.
ReadKeys: TypeAlias = Callable[[], Awaitable[bytes]]


class KeysUnavailable(HeadwaterError):
    """The keys of users' tokens could not be read, so the token cannot be verified."""

    disposition = Disposition.RETRY
    code = "jwks_unavailable"


class KeySource:
    """The keys of one issuer.

    Args:
        read: Reads the JWKS.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, read: ReadKeys, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._keys: tuple[TokenKey, ...] = ()
        self._read_at = self._attempted_at = float("-inf")
        #: Error of the last attempt to read the keys; None if it succeeded.
        self._failure: str | None = None
        self._read_lock = asyncio.Lock()

    async def find(self, algorithm: str, kid: str | None) -> TokenKey | None:
        """Return the key that a token names; without a name, the only one for its algorithm.

        Args:
            algorithm: Algorithm of the token.
            kid: Id of the key in the token's header.

        Raises:
            KeysUnavailable: The keys could not be read.
        """
        if self._age_s() > FRESH_S:
            await self._refresh()
        key = self._cached(algorithm, kid)
        if key is None:
            await self._refresh()
            key = self._cached(algorithm, kid)
        if self._age_s() > EXPIRED_AFTER_S or (key is None and self._failure is not None):
            raise KeysUnavailable(
                f"expected the keys of users' tokens, found: {self._failure}; try again later"
            )
        return key

    def _age_s(self) -> float:
        return self._clock() - self._read_at

    def _cached(self, algorithm: str, kid: str | None) -> TokenKey | None:
        matching = [key for key in self._keys if key.algorithm == algorithm]
        if kid is not None:
            matching = [key for key in matching if key.kid == kid]
        return matching[0] if len(matching) == 1 else None

    async def _refresh(self) -> None:
        """Read the keys, unless the last attempt was too recent."""
        async with self._read_lock:
            if self._clock() - self._attempted_at < READ_INTERVAL_S:
                return
            try:
                self._keys = read_key_set(await self._read())
            except (KeySetInvalid, OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
                self._failure = str(error) or type(error).__name__
                _LOG.warning("the keys of users' tokens could not be read: %s", self._failure)
            else:
                self._failure = None
                self._read_at = self._clock()
            self._attempted_at = self._clock()


def keys_at(address: str) -> ReadKeys:
    """Return a function that reads the document at a URL or in a file."""
    if address.startswith(("https://", "http://")):
        return lambda: _fetch(address)
    return lambda: asyncio.to_thread(_read_file, Path(address))


async def _fetch(url: str) -> bytes:
    """Fetch a document over HTTP, up to the size limit.

    Raises:
        httpx2.HTTPError: The request failed.
        KeySetInvalid: The status is not 200, or the request timed out.
    """
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx2.AsyncClient(timeout=_TIMEOUT_S) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as response,
        ):
            if response.status_code != httpx2.codes.OK:
                raise KeySetInvalid(f"expected a JWKS, found the status {response.status_code}")
            document = b""
            async for chunk in response.aiter_bytes():
                document += chunk
                if len(document) > KEY_SET_BYTES_MAX:
                    break
            return document
    except TimeoutError:
        raise KeySetInvalid(f"expected a JWKS within {_TIMEOUT_S:g} s, found none") from None


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEY_SET_BYTES_MAX + 1)
