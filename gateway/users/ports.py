"""What the routes of users need of the outside."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headwater.gateway.blobs.store import Blobs
from headwater.gateway.http.ports import DeliveryLog
from headwater.gateway.terra.answers import WidgetSession
from headwater.gateway.terra.listing import Listing
from headwater.gateway.tokens.verifier import Verifier
from headwater.projections.deliveries.of_user import Connection
from headwater.projections.workflows.queries import LocatedInstance, Page
from headwater.schemas.answers import InstanceFound
from headwater.streams.workflows.client import Commands


class AsksTerra(Protocol):
    """Terra's API.

    Errors: TerraNotConfigured, TerraFailed, TerraRefused; from all but `close`.
    """

    def require(self) -> None:
        """Sees that Terra can be asked at all."""

    async def widget_session(
        self,
        reference_id: str,
        *,
        providers: tuple[str, ...] = (),
        success_url: str | None = None,
        failure_url: str | None = None,
    ) -> WidgetSession:
        """Begins a session in which a user connects a wearable."""

    async def subscriptions(self) -> Listing:
        """The connections that Terra has for all users, as of at most a minute ago."""

    async def close(self) -> None:
        """Ends the connections."""


class ListsInstances(Protocol):
    """The instances of workflows.

    Errors: StoreUnavailable.
    """

    async def instance(self, workflow_name: str, instance_id: str) -> LocatedInstance | None:
        """An instance; None when there is none (yet)."""

    async def instances(
        self, workflow_name: str, *, limit: int, labels: Mapping[str, str]
    ) -> Page[InstanceFound]:
        """Instances with labels, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForUsers:
    """What is there for users alone; without a verifier no token is taken."""

    tokens: Verifier | None
    terra: AsksTerra
    blobs: Blobs

    async def close(self) -> None:
        """Ends connections."""
        await self.terra.close()
        await self.blobs.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPorts:
    """All that the routes need.

    Shape:  `connections` gives those of a user; it raises StoreUnavailable.
    Units:  the clock in Unix milliseconds.
    """

    outside: ForUsers
    log: DeliveryLog
    commands: Commands
    instances: ListsInstances
    connections: Callable[[str], Awaitable[Sequence[Connection]]]
    clock: Callable[[], int]
    new_id: Callable[[], str]

    @property
    def terra(self) -> AsksTerra:
        """Terra."""
        return self.outside.terra

    @property
    def blobs(self) -> Blobs:
        """Where files are kept."""
        return self.outside.blobs
