"""What the routes need of Kafka.

The adapters are in `streams.pipeline.webhook_log` and `streams.workflows.client`. Reading is
`projections.deliveries.queries` and `projections.workflows.queries`, used as they are.
"""

from collections.abc import Sequence
from typing import Protocol

from headwater.schemas.history import ReplySent
from headwater.schemas.records import WebhookReceived
from headwater.streams.workflows.client import Addressed


class Appended(Protocol):
    """What became of an append."""

    @property
    def duplicate(self) -> bool:
        """Whether the delivery was known already, so that nothing was appended."""


class DeliveryLog(Protocol):
    """The topic `webhooks`, for appending.

    Contract: `append` returns only after every in-sync replica has the delivery, and raises
    BrokerUnavailable if that was not so in time. `start` does not fail while Kafka is away.
    """

    @property
    def ready(self) -> bool:
        """Whether Kafka is connected."""

    async def start(self) -> None:
        """Begins to connect."""

    async def stop(self) -> None:
        """Sends what is pending and disconnects."""

    async def append(self, delivery: WebhookReceived) -> Appended:
        """Appends a delivery, unless it is known already."""


class Replayed(Protocol):
    """What came of replaying one dead letter."""

    @property
    def partition(self) -> int:
        """Partition of the dead letter."""

    @property
    def offset(self) -> int:
        """Offset of the dead letter."""

    @property
    def topic(self) -> str:
        """Where it was put; empty if nowhere."""

    @property
    def ok(self) -> bool:
        """Whether it was put back."""

    @property
    def detail(self) -> str:
        """Why not."""


class Replays(Protocol):
    """The topic `dead-letters`, for putting records back where they came from."""

    async def start(self) -> None:
        """Prepares."""

    async def stop(self) -> None:
        """Disconnects."""

    async def replay(self, positions: Sequence[tuple[int, int]]) -> Sequence[Replayed]:
        """Puts dead letters back; one answer a (partition, offset), in order."""


class Commands(Protocol):
    """The topics of commands and replies, for having something done with workflows.

    Contract: `send_many` returns outcomes in the order of the commands. It raises OutcomeUnknown
    or BrokerUnavailable if that was not so in time; then commands may be carried out all the same.
    """

    @property
    def ready(self) -> bool:
        """Whether Kafka is connected."""

    async def start(self) -> None:
        """Begins to connect."""

    async def stop(self) -> None:
        """Ends; who waits still is told BrokerUnavailable."""

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        """Sends commands together and returns their outcomes, refusals among them."""
