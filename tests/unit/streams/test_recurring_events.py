"""What the gateway's log answers to events of connections, before intake decides."""

import asyncio

import pytest

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.provider import Placement
from headwater.schemas.records import WebhookReceived
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.pipeline.webhook_log import Appended, WebhookLog
from tests.unit.streams.test_intake import NOW, received, switched


def answers(*deliveries: WebhookReceived) -> list[str | None]:
    """The first delivery of each that is called a duplicate, as its number in order."""

    async def run() -> list[Appended | None]:
        log = WebhookLog(
            cluster=Cluster("127.0.0.1:1"),
            append_timeout_s=1,
            placement=Placement(installed_providers(), "user_"),
            clock=lambda: NOW,
        )
        return [log.recurring(delivery) for delivery in deliveries]

    return [None if answer is None else answer.original for answer in asyncio.run(run())]


def test_the_last_event_of_a_subject_again_is_probably_a_duplicate():
    first, deauth, other = switched("auth", 1), switched("deauth", 3), switched("auth", 9)
    assert answers(first, switched("auth", 2), deauth, other, switched("auth", 10)) == [
        None, first.event_id, None, None, other.event_id,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "again", [switched("auth", 2, NOW - 5), received(event_id="other"), switched("deauth", 2)]
)
def test_any_other_delivery_is_no_duplicate(again: WebhookReceived):
    assert answers(switched("auth", 1), again) == [None, None]
