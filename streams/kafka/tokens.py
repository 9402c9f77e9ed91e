"""Tokens with which Kafka clients authenticate (OAUTHBEARER).

A token is requested for every new connection, by clients on several event loops. Brokers may be
configured to close a connection when its token expires; clients then reconnect with a newer token.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx2
import msgspec
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from typing_extensions import override

from headwater.schemas.errors import PARSE_ERRORS
from headwater.streams.clock import monotonic as seconds

_TIMEOUT_S: Final = 10.0
#: A token is replaced when a fifth of its life is left, so that clock differences do not matter.
_USED_FOR: Final = 0.8
#: Characters of an answer that an error quotes.
_QUOTED_CHARS: Final = 200


class FileTokens(AbstractTokenProvider):
    """Tokens that another program writes to a file, and replaces there before they expire."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @override
    async def token(self) -> str:
        """Return the current token.

        Raises:
            KafkaConnectionError: The file cannot be read or is empty.
        """
        try:
            token = self._file.read_text("utf-8").strip()
        except OSError as error:
            raise KafkaConnectionError(
                f"expected a token in {self._file}, found: {error.strerror}"
            ) from error
        if not token:
            raise KafkaConnectionError(f"expected a token in {self._file}, found an empty file")
        return token


class _TokenResponse(msgspec.Struct):
    """Response of a token endpoint (RFC 6749 §5.1)."""

    access_token: str
    #: In seconds. Without it the token is used only once.
    expires_in: float = 0


class EndpointTokens(AbstractTokenProvider):
    """Tokens of an OIDC provider, by the client credentials grant (RFC 6749 §4.4)."""

    def __init__(
        self,
        *,
        url: str,
        client_id: str,
        client_secret: str,
        scope: str = "",
        tls: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = seconds,
    ) -> None:
        self._url = url
        self._login = httpx2.BasicAuth(client_id, client_secret)
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._tls = tls
        self._monotonic = monotonic
        self._renewing = threading.Lock()
        self._token = ""
        self._use_until = 0.0

    @override
    async def token(self) -> str:
        """Return the current token; requests one if there is none or it expires soon.

        Raises:
            KafkaConnectionError: The endpoint returned no token.
        """
        if self._monotonic() < self._use_until:
            return self._token
        return await asyncio.to_thread(self._renewed)

    def _renewed(self) -> str:
        with self._renewing:
            now = self._monotonic()
            if now >= self._use_until:  # no other thread has renewed it meanwhile
                response = self._request()
                self._token = response.access_token
                self._use_until = now + _USED_FOR * response.expires_in
            return self._token

    def _request(self) -> _TokenResponse:
        try:
            response = httpx2.post(
                self._url,
                data=self._form,
                auth=self._login,
                verify=self._tls or ssl.create_default_context(),
                timeout=_TIMEOUT_S,
            )
            if not response.is_success:
                raise self._unusable(f"{response.status_code} {response.text[:_QUOTED_CHARS]}")
            return msgspec.json.decode(response.content, type=_TokenResponse)
        except httpx2.HTTPError as error:
            raise self._unusable(str(error) or repr(error)) from error
        except PARSE_ERRORS as error:
            raise self._unusable(str(error)) from error

    def _unusable(self, problem: str) -> KafkaConnectionError:
        return KafkaConnectionError(f"expected a token of {self._url}, found: {problem}")
