"""The demo day: nine deliveries of two people, posted as Terra posts them.

The bodies are files, so posting them again posts the same bytes, which are duplicates. The
signatures are made when they are posted, because a signature is valid for five minutes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Final

import httpx2

from headwater.processors.signatures import SCHEMES, sign

#: Arrives before its user's connection is known: it does not name the user, so it waits until
#: `CONNECTS_LATE` does.
TOO_EARLY: Final = "03-bo-whoop-day-too-early"
CONNECTS_LATE: Final = "08-bo-connects-whoop"
#: Time at which the demo's people connected their wearables: the day before.
_CONNECTED_AT: Final = "2026-06-29T12:00:00Z"


class PostFailed(Exception):
    """A delivery was not accepted; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery that can be posted."""

    name: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """The gateway's answer to a delivery."""

    name: str
    type: str
    event_id: str
    request_id: str
    duplicate: bool


def demo_deliveries() -> tuple[Delivery, ...]:
    """Return the deliveries of the demo day, in the order in which they are posted."""
    bodies = (
        (file.name.removesuffix(".json"), file)
        for file in files("headwater.gateway.local.demo").iterdir()
        if file.name.endswith(".json")
    )
    return tuple(
        Delivery(name=name, body=file.read_bytes())
        for name, file in sorted(bodies, key=lambda item: item[0])
    )


def demo_people() -> list[dict[str, str]]:
    """Return people with connected wearables after the demo day, as Terra's stand-in needs them."""
    payloads = [json.loads(delivery.body) for delivery in demo_deliveries()]
    return [
        {name: payload["user"][name] for name in ("user_id", "provider", "reference_id", "scopes")}
        | {"created_at": _CONNECTED_AT}
        for payload in payloads
        if payload["type"] == "auth"
    ]


def terra_signature(secret: str, body: bytes, at_s: int) -> str:
    """Return the header terra-signature for a body posted at a time (Unix seconds)."""
    return sign(SCHEMES["terra"], body, secret, at_s)["terra-signature"]


def post(
    client: httpx2.Client, secret: str, deliveries: Sequence[Delivery], clock: Callable[[], int]
) -> list[Posted]:
    """Sign and post deliveries, one after the other.

    Raises:
        PostFailed: A delivery was not accepted; the later ones were not posted.
    """
    return [_post(client, secret, delivery, clock() // 1000) for delivery in deliveries]


def _post(client: httpx2.Client, secret: str, delivery: Delivery, at_s: int) -> Posted:
    headers = {
        "content-type": "application/json",
        "terra-signature": terra_signature(secret, delivery.body, at_s),
    }
    try:
        answer = client.post("/webhooks/terra", content=delivery.body, headers=headers)
    except httpx2.TransportError as error:
        raise PostFailed(f"{delivery.name}: no answer from {client.base_url}: {error}") from error
    if answer.status_code != HTTPStatus.OK:
        raise PostFailed(f"{delivery.name}: answered {answer.status_code}: {answer.text[:300]}")
    receipt = answer.json()
    return Posted(
        name=delivery.name,
        type=receipt["type"],
        event_id=receipt["raw_event_id"],
        request_id=receipt["request_id"],
        duplicate=receipt.get("duplicate", False),
    )
