"""Ports of the user routes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headwater.gateway.api.ports import DeliveryLog
from headwater.gateway.api.tokens.verifier import Verifier
from headwater.gateway.builtin.blobs.store import Blobs
from headwater.gateway.builtin.terra.answers import WidgetSession
from headwater.gateway.builtin.terra.connection_list import ConnectionList
from headwater.projections.deliveries.of_user import Connection
from headwater.projections.workflows.queries import LocatedInstance, Page
from headwater.schemas.answers import InstanceFound
from headwater.streams.workflows.client import Commands


class TerraApi(Protocol):
    """Terra's API. All methods except `close` raise TerraNotConfigured, TerraFailed, TerraRefused.

    See `gateway.terra.client`.
    """

    def require(self) -> None:
        """Check that Terra's credentials are set."""

    async def widget_session(
        self,
        reference_id: str,
        *,
        providers: tuple[str, ...] = (),
        success_url: str | None = None,
        failure_url: str | None = None,
    ) -> WidgetSession:
        """Start a session in which a user connects a wearable."""

    async def subscriptions(self) -> ConnectionList:
        """Return Terra's connections of all users, at most a minute old."""

    async def close(self) -> None:
        """Close the HTTP connections."""


class InstanceQueries(Protocol):
    """Queries of workflow instances. All methods raise StoreUnavailable."""

    async def instance(self, workflow_name: str, instance_id: str) -> LocatedInstance | None:
        """Return an instance; None if there is none (yet)."""

    async def instances(
        self, workflow_name: str, *, limit: int, labels: Mapping[str, str]
    ) -> Page[InstanceFound]:
        """Return instances with labels, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserServices:
    """Services that only the user routes use. Without a verifier, no tokens are accepted."""

    tokens: Verifier | None
    terra: TerraApi
    blobs: Blobs

    async def close(self) -> None:
        """Close connections."""
        await self.terra.close()
        await self.blobs.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPorts:
    """Dependencies of the user routes.

    Attributes:
        services: Services that only these routes use.
        log: Topic `webhooks`.
        commands: Sends commands to workflows.
        instances: Queries of workflow instances.
        connections: Returns the connections of a user; raises StoreUnavailable.
        clock: Returns Unix milliseconds.
        new_id: Returns unique ids.
    """

    services: UserServices
    log: DeliveryLog
    commands: Commands
    instances: InstanceQueries
    connections: Callable[[str], Awaitable[Sequence[Connection]]]
    clock: Callable[[], int]
    new_id: Callable[[], str]

    @property
    def terra(self) -> TerraApi:
        """Terra's API."""
        return self.services.terra

    @property
    def blobs(self) -> Blobs:
        """Store of uploaded files."""
        return self.services.blobs
