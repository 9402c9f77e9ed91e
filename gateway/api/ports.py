"""Kafka ports of the HTTP routes, and sending of commands on behalf of a request.

The adapters are `webhook_log` and `request_logs` in `streams.pipeline`, and
`streams.workflows.deployment_log`. The port for commands is in `streams.workflows.client`, with its
adapter. Postgres is read through `projections.deliveries.queries` and
`projections.workflows.queries` directly.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from headwater.gateway.api.problems import Problem
from headwater.processors.deployments import DeploymentOutcome, Deployments
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import ReplySent
from headwater.schemas.providers.headwater import SystemEvent
from headwater.schemas.records import OperationAudited, RequestAnswered, WebhookReceived
from headwater.streams.pipeline.reprocessing import Reappended, Replayed
from headwater.streams.pipeline.webhook_log import Answer, Appended, Stored
from headwater.streams.workflows.client import Addressed, Commands


class DeploymentLog(Protocol):
    """The topic of code deployments; connects on first use."""

    async def catch_up(self) -> Deployments:
        """Return everything that was deployed and activated before the call."""

    async def upload(self, deployment_id: str, artifact: bytes) -> int:
        """Append an artifact durably; return its offset, for the record of its deployment."""

    async def write(self, record: DeploymentCreated | DeploymentActivated) -> DeploymentOutcome:
        """Deploy or activate; return the outcome when it is durable."""

    async def stop(self) -> None:
        """Disconnect."""


class DeliveryLog(Protocol):
    """The topic `webhooks`. `start` does not fail while Kafka is down."""

    @property
    def ready(self) -> bool:
        """Whether Kafka is connected."""

    async def start(self) -> None:
        """Begin to connect."""

    async def stop(self) -> None:
        """Flush pending records and disconnect."""

    async def append(self, delivery: WebhookReceived) -> Appended:
        """Append a delivery unless it is a duplicate; return when all in-sync replicas have it.

        Raises:
            BrokerUnavailable: Kafka did not acknowledge in time.
            Overloaded: Too many deliveries wait for an acknowledgment; raised immediately.
        """

    def at_next_append(self, work: Callable[[], None]) -> None:
        """Call `work` within milliseconds, when the next batch may `begin`."""

    def begin(self, deliveries: Sequence[WebhookReceived], answers: Sequence[Answer]) -> None:
        """Begin to append deliveries; resolve their futures as `append` returns or raises."""

    def leave(self, delivery: WebhookReceived, answer: Answer) -> None:
        """Note that the future of a delivery is no longer awaited."""

    async def publish_fact(self, fact: SystemEvent, *, request_id: str) -> Appended:
        """Append a system event; returns and raises as `append` does."""

    async def read(self, partition: int, offset: int) -> Stored | None:
        """Return the delivery at an offset; None if there is none (any more)."""

    async def read_all(
        self, positions: Collection[tuple[int, int]]
    ) -> Mapping[tuple[int, int], WebhookReceived]:
        """Return deliveries by (partition, offset), without those that no longer exist."""


class AnswerLog(Protocol):
    """The topic `traces`, for requests without a new delivery."""

    async def start(self) -> None:
        """Begin to connect."""

    async def stop(self) -> None:
        """Flush pending records and disconnect."""

    def record(self, answer: RequestAnswered) -> None:
        """Enqueue a response; never waits or raises. Dropped records are counted and logged."""


class AuditLog(Protocol):
    """The topic `audit`."""

    async def start(self) -> None:
        """Begin to connect."""

    async def stop(self) -> None:
        """Flush pending records and disconnect."""

    async def append(self, record: OperationAudited) -> None:
        """Append an entry; return when it is durable.

        Raises:
            HeadwaterError: It did not become durable in time.
        """


class Replays(Protocol):
    """Reprocesses dead letters and deliveries by appending them again."""

    async def start(self) -> None:
        """Prepare."""

    async def stop(self) -> None:
        """Disconnect."""

    async def replay(self, positions: Sequence[tuple[int, int]]) -> Sequence[Replayed]:
        """Append dead letters to their original topics.

        Args:
            positions: Partitions and offsets in `dead-letters`.

        Returns:
            One result per position, in order.
        """

    async def reprocess(self, places: Sequence[tuple[int, int]]) -> Sequence[Reappended]:
        """Append deliveries again.

        Args:
            places: Partitions and offsets in `webhooks`.

        Returns:
            One result per position, in order.
        """


class Wipes(Protocol):
    """Requests wipes."""

    async def start(self) -> None:
        """Prepare."""

    async def stop(self) -> None:
        """Disconnect."""

    async def order(self, user_id: str, wipe_id: str) -> int:
        """Request a wipe durably; return how many partitions carry it out."""

    async def partitions(self) -> int:
        """Return how many partitions carry out a wipe."""


# -- sending


async def send_all(commands: Commands, addressed: Sequence[Addressed]) -> list[ReplySent]:
    """Send commands; return one reply per command.

    Raises:
        Problem: Kafka is not connected, or did not acknowledge.
        OutcomeUnknown: No reply arrived in time.
        Overloaded: Too many commands wait.
        NotYetReadable: Some members run a release that cannot read a command.
    """
    if not commands.ready:
        raise Problem("broker_unavailable", "Kafka is not connected; nothing was sent")
    try:
        return await commands.send_many(addressed)
    except BrokerUnavailable as error:
        raise Problem(
            "broker_unavailable",
            f"{error.message}; the command may have been sent, and may still be executed",
        ) from error
