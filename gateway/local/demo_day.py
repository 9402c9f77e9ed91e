"""The demo day: nine deliveries of two people, posted as Terra would post them.

The bodies are files, so posting them again posts the same bytes and is answered as duplicates; the
signatures are made when they are posted, because a signature holds for five minutes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Final

import httpx

from headwater.processors.signatures import SCHEMES, sign

#: Comes before its user's connection is known: its user is not named in it, so it has to wait until
#: `CONNECTS_LATE` says who that is.
TOO_EARLY: Final = "03-bo-whoop-day-too-early"
CONNECTS_LATE: Final = "08-bo-connects-whoop"
#: When the demo's people connected their wearables: the day before.
_CONNECTED_AT: Final = "2026-06-29T12:00:00Z"


class PostFailed(Exception):
    """A delivery was not taken; says why, in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery that can be posted."""

    name: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What the gateway answered to a delivery."""

    name: str
    type: str
    event_id: str
    request_id: str
    duplicate: bool


def demo_deliveries() -> tuple[Delivery, ...]:
    """The deliveries of the demo day, in the order in which they are posted."""
    found = (
        (file.name.removesuffix(".json"), file)
        for file in files("headwater.gateway.local.demo").iterdir()
        if file.name.endswith(".json")
    )
    return tuple(
        Delivery(name=name, body=file.read_bytes())
        for name, file in sorted(found, key=lambda named: named[0])
    )


def demo_people() -> list[dict[str, str]]:
    """Whose wearables are connected when the demo day is over, as who plays Terra has them."""
    told = [json.loads(each.body) for each in demo_deliveries()]
    return [
        {name: each["user"][name] for name in ("user_id", "provider", "reference_id", "scopes")}
        | {"created_at": _CONNECTED_AT}
        for each in told
        if each["type"] == "auth"
    ]


def terra_signature(secret: str, body: bytes, at_s: int) -> str:
    """The value of the header terra-signature for a body posted at a time (Unix seconds)."""
    return sign(SCHEMES["terra"], body, secret, at_s)["terra-signature"]


def post(
    client: httpx.Client, secret: str, deliveries: Sequence[Delivery], clock: Callable[[], int]
) -> list[Posted]:
    """Posts deliveries one after the other, each signed.

    Errors: PostFailed for the first that is not taken.
    """
    return [_post(client, secret, delivery, clock() // 1000) for delivery in deliveries]


def _post(client: httpx.Client, secret: str, delivery: Delivery, at_s: int) -> Posted:
    headers = {
        "content-type": "application/json",
        "terra-signature": terra_signature(secret, delivery.body, at_s),
    }
    try:
        answer = client.post("/webhooks/terra", content=delivery.body, headers=headers)
    except httpx.TransportError as error:
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
