"""What the routes need of Kafka.

The adapters are in `streams.pipeline`, `webhook_log`, `answer_log` and `audit_log`; that of
deployments is `streams.workflows.deployment_log`. The port for commands is beside its adapter, in
`streams.workflows.client`. Reading is `projections.deliveries.queries` and
`projections.workflows.queries`, used as they are.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from headwater.processors.deployments import DeploymentOutcome, Deployments
from headwater.schemas.audit import OperationAudited
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated
from headwater.schemas.providers.headwater import SystemEvent
from headwater.schemas.records import RequestAnswered, WebhookReceived
from headwater.streams.pipeline.dead_letter_log import Reappended, Replayed
from headwater.streams.pipeline.webhook_log import Answer, Appended, Stored


class DeploymentLog(Protocol):
    """The deployments of code, as the log has them; connects when first used."""

    async def catch_up(self) -> Deployments:
        """All that was deployed and activated before the call."""

    async def upload(self, deployment_id: str, artifact: bytes) -> int:
        """Makes an artifact durable; gives its offset, for the record of its deployment."""

    async def write(self, record: DeploymentCreated | DeploymentActivated) -> DeploymentOutcome:
        """Deploys or activates; says what came of it once it is durable."""

    async def stop(self) -> None:
        """Disconnects."""


class DeliveryLog(Protocol):
    """The topic `webhooks`.

    Contract: `append` returns only after every in-sync replica has the delivery, and raises
    BrokerUnavailable if that was not so in time, or Overloaded, at once, if too much waits for
    that already. `start` does not fail while Kafka is away.
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

    def at_next_append(self, work: Callable[[], None]) -> None:
        """Does something when it is time to `begin` what came meanwhile: in milliseconds."""

    def begin(self, deliveries: Sequence[WebhookReceived], answers: Sequence[Answer]) -> None:
        """Begins to append deliveries; each has an answer, which is given as `append` answers."""

    def leave(self, delivery: WebhookReceived, answer: Answer) -> None:
        """Takes note that nobody waits for an answer any more."""

    async def tell(self, fact: SystemEvent, *, request_id: str) -> Appended:
        """Appends what the house has learnt; returns and fails as `append` does."""

    async def read(self, partition: int, offset: int) -> Stored | None:
        """A delivery as it lies in the log; None where there is none (any more)."""

    async def read_all(
        self, positions: Collection[tuple[int, int]]
    ) -> Mapping[tuple[int, int], WebhookReceived]:
        """Deliveries by (partition, offset); without those that are there no more."""


class AnswerLog(Protocol):
    """The topic `traces`, for requests that brought nothing new.

    Contract: `record` neither waits nor fails; what cannot be kept is counted and said.
    """

    async def start(self) -> None:
        """Begins to connect."""

    async def stop(self) -> None:
        """Sends what is pending and disconnects."""

    def record(self, answer: RequestAnswered) -> None:
        """Appends an answer, some time soon."""


class AuditLog(Protocol):
    """The topic `audit`.

    Contract: `append` returns only when the entry is durable, and raises an error of the house if
    that was not so in time.
    """

    async def start(self) -> None:
        """Begins to connect."""

    async def stop(self) -> None:
        """Sends what is pending and disconnects."""

    async def append(self, record: OperationAudited) -> None:
        """Appends an entry."""


class Replays(Protocol):
    """Putting records back where they came from: dead letters, and deliveries themselves."""

    async def start(self) -> None:
        """Prepares."""

    async def stop(self) -> None:
        """Disconnects."""

    async def replay(self, positions: Sequence[tuple[int, int]]) -> Sequence[Replayed]:
        """Puts dead letters back; one answer a (partition, offset), in order."""

    async def reprocess(self, positions: Sequence[tuple[int, int]]) -> Sequence[Reappended]:
        """Appends deliveries once more, by positions in `webhooks`; one answer each, in order."""


class Wipes(Protocol):
    """Ordering wipes.

    Contract: what `order` has returned for is carried out.
    """

    async def start(self) -> None:
        """Prepares."""

    async def stop(self) -> None:
        """Disconnects."""

    async def order(self, user_id: str, wipe_id: str) -> int:
        """Orders a wipe; returns how many partitions carry it out."""

    async def partitions(self) -> int:
        """How many partitions carry each wipe out."""
