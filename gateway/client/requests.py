"""Requests as data: what is sent, what comes back, and how paths, queries and bodies are put."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headwater.gateway.client.retries import Repeat

#: Parameters by name; those that are None are not asked for, and lists are asked for one by one.
Query: TypeAlias = dict[str, str | int | bool | list[str] | None]


#: As the service takes them.
_IDEMPOTENCY_KEY: Final = re.compile("[!-~]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, and what it means to send it twice."""

    method: str
    path: str
    repeat: Repeat
    query: Mapping[str, str | list[str]] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Seconds for which the server may wait before it answers, beside the time of an answer.
    waits_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that is a success, from a server at a URL."""

    url: str
    body: bytes
    position: str
    #: The HTTP status.
    status: int


def members(**texts: str | None) -> str:
    """A JSON object of members that are JSON texts already; those that are None are left out."""
    given = {name: text for name, text in texts.items() if text is not None}
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in given.items()) + "}"


def idempotency_key(given: str) -> str:
    """A key, as it can be sent.

    Errors: ValueError for what the service does not take, and for none: what is sent without a key
            is done again, and whoever gives one does not want that.
    """
    if not _IDEMPOTENCY_KEY.fullmatch(given):
        raise ValueError(
            "expected an idempotency key of 1 to 255 printable ASCII characters without spaces, "
            f"found {given[:60]!r}"
        )
    return given


def asked_for(query: Query) -> dict[str, str | list[str]]:
    """A query as it is written."""
    return {name: _written(value) for name, value in query.items() if value is not None}


def _written(value: str | int | list[str]) -> str | list[str]:
    if isinstance(value, list):
        return value
    return json.dumps(value) if isinstance(value, bool) else str(value)
