"""Requests and answers as data, and the encoding of queries, bodies and keys."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headwater.gateway.client.retries import Repeat

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
    """A successful answer of the server at `url`.

    Attributes:
        position: Positions of the outcome in the log, as the header has them.
        status: HTTP status.
    """

    url: str
    body: bytes
    position: str
    status: int


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
