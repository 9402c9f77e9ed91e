"""The keys that a gateway accepts: those of the settings, and a copy of the topic of API keys.

Requests need no query: every gateway has all keys in memory, and reads the end of the topic every
two seconds. So a revocation takes effect everywhere within seconds, and keys are accepted while
Kafka or Postgres is unavailable. A key that is not in the copy may have been created by another
gateway a moment ago: then the topic is read first, at most once a second.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import Final, NamedTuple

from headwater.gateway.api.authentication import Caller, key_id
from headwater.gateway.settings.settings import Settings, revealed
from headwater.processors.api_keys import USE_PRECISION_MS, ApiKey, Scope, id_of
from headwater.schemas.api_keys import ApiKeyUsed
from headwater.schemas.errors import HeadwaterError
from headwater.streams.kafka.api_key_log import ApiKeyLog

_LOG: Final = logging.getLogger("headwater.gateway")

_FOLLOW_EVERY_S: Final = 2.0
#: Least time between two reads for keys that are not in the copy: guesses cost one read a second.
_REFRESH_EVERY_MS: Final = 1000
#: Seconds that a request waits for that read; Kafka needs some milliseconds.
_REFRESH_WITHIN_S: Final = 2.0


class ConfiguredKey(NamedTuple):
    """A key of the settings."""

    text: bytes
    caller: Caller


#: Scopes of the keys of the settings by kind; the settings are `{kind}_key`, each with several.
CONFIGURED_SCOPES: Final[dict[str, frozenset[Scope]]] = {
    "admin": frozenset(Scope),
    "read": frozenset({Scope.ROWS_READ}),
    "workflow": frozenset(
        {
            Scope.INSTANCES_READ,
            Scope.INSTANCES_WRITE,
            Scope.JOBS_WORK,
            Scope.GRAPHS_WRITE,
            Scope.DEPLOYMENTS_READ,
        }
    ),
    "world": frozenset({Scope.WORLD_READ, Scope.WORLD_WRITE}),
    "tick": frozenset({Scope.TICKS_WRITE}),
}


def configured_keys(settings: Settings) -> list[ConfiguredKey]:
    """Return the keys of the settings."""
    return [
        ConfiguredKey(text.encode(), Caller(key_id(kind, text), scopes))
        for kind, scopes in CONFIGURED_SCOPES.items()
        for text in revealed(getattr(settings, f"{kind}_key"))
    ]


class KeyRing:
    """Finds the sender of a request by the key that it presents.

    Args:
        log: The topic of API keys.
        configured: The keys of the settings.
        project: The project of this gateway; keys of others do not exist here.
        clock: Returns Unix milliseconds.
    """

    def __init__(
        self,
        log: ApiKeyLog,
        configured: Sequence[ConfiguredKey],
        *,
        project: str,
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._configured = configured
        self.project = project
        self._clock = clock
        #: Whether the topic was read since the start.
        self.is_loaded = False
        #: Error of the last attempt to read the topic; empty if it succeeded.
        self._failure = "the topic was not read yet"
        self._refreshed_at_ms = 0
        #: The read that runs for keys that are not in the copy.
        self._refreshing: asyncio.Task[bool] | None = None
        #: Begin of the hour of the last use, by id, of keys of which the topic does not have it.
        self._uses: dict[str, int] = {}

    @property
    def state(self) -> str:
        """State for the report of readiness: ok, or why the copy is not current."""
        if not self._failure:
            return "ok"
        return "not current" if self.is_loaded else "not read"

    def find(self, text: str) -> Caller | None:
        """Return the caller with a key, if it is valid now."""
        # All are compared, so that the time reveals nothing.
        presented = text.encode(errors="replace")
        matches = [key.caller for key in self._configured if compare_digest(key.text, presented)]
        if matches:
            scopes = frozenset[str]().union(*(caller.scopes for caller in matches))
            return matches[0]._replace(scopes=scopes)
        now_ms = self._clock()
        key = self._log.fold.find(text, self.project, now_ms)
        if key is None:
            return None
        self._note_use(key, now_ms)
        return caller_of(key)

    def caller_with_id(self, key_id: str, digest: str) -> Caller | None:
        """Return the caller with the id of a key, if its text with this SHA-256 is valid now.

        Args:
            key_id: The id; that of a key of the settings has a digest itself.
            digest: Beginning of the SHA-256.
        """
        of_settings = (key.caller for key in self._configured if key.caller.key_id == key_id)
        if (caller := next(of_settings, None)) is not None:
            return caller
        key = self._log.fold.by_id.get(key_id)
        if key is None or key.created.project != self.project:
            return None
        now_ms = self._clock()
        texts = [secret.digest for secret in key.secrets if secret.digest.startswith(digest)]
        return caller_of(key) if any(key.accepts(text, now_ms) for text in texts) else None

    async def refresh_for(self, texts: Iterable[str]) -> bool:
        """Read the topic if it may have one of these keys; return whether it was read."""
        if not any(map(id_of, texts)) or not self.is_loaded:
            return False
        if self._refreshing is None or self._refreshing.done():
            now_ms = self._clock()
            if now_ms - self._refreshed_at_ms < _REFRESH_EVERY_MS:
                return False
            self._refreshed_at_ms = now_ms
            self._refreshing = asyncio.create_task(self._refresh_soon())
        # Programs begin with several requests at once: all of them wait for one read.
        return await asyncio.shield(self._refreshing)

    async def _refresh_soon(self) -> bool:
        try:
            async with asyncio.timeout(_REFRESH_WITHIN_S):
                await self._log.catch_up()
        except (HeadwaterError, TimeoutError):
            return False
        return True

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the topic in the background."""
        task = asyncio.create_task(self._follow(), name="follow API keys")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._log.stop()

    async def _follow(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(_FOLLOW_EVERY_S)

    async def refresh(self) -> None:
        """Read the topic to its end, and append the times of last uses."""
        try:
            await self._log.catch_up()
            self.is_loaded, failure = True, ""
            await self._append_uses()
        except HeadwaterError as error:
            failure = error.message
        except Exception as error:  # noqa: BLE001 (or no later revocation would take effect)
            _LOG.exception("the API keys could not be read")
            failure = f"unexpected {type(error).__name__}"
        if failure and failure != self._failure:
            _LOG.warning("the API keys in memory are not current: %s", failure)
        self._failure = failure

    def _note_use(self, key: ApiKey, now_ms: int) -> None:
        hour_ms = now_ms - now_ms % USE_PRECISION_MS
        if key.last_used_at_ms < hour_ms:
            self._uses[key.created.id] = hour_ms

    async def _append_uses(self) -> None:
        by_id = self._log.fold.by_id
        for used_id, hour_ms in list(self._uses.items()):
            if by_id[used_id].last_used_at_ms < hour_ms:  # Another gateway may have been earlier.
                await self._log.record_use(ApiKeyUsed(id=used_id, at_ms=hour_ms))
            if self._uses[used_id] == hour_ms:
                del self._uses[used_id]


def key_ring_of(settings: Settings, log: ApiKeyLog, clock: Callable[[], int]) -> KeyRing:
    """Return the keys of the settings and of the topic."""
    return KeyRing(log, configured_keys(settings), project=settings.project, clock=clock)


def caller_of(key: ApiKey) -> Caller:
    """Return the caller of a key of the topic."""
    created = key.created
    return Caller(
        created.id, key.scopes, created.id, created.name, created.rate_limit, key.expires_at_ms
    )
