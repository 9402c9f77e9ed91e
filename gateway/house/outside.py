"""What the house's own workflows need of the outside: ports, reached from their steps alone."""

from collections.abc import Sequence
from datetime import date
from typing import Protocol

from headwater.projections.deliveries.replaying import Matched, Place, Selection


class AsksTerra(Protocol):
    """Terra's API, as workflows use it.

    Errors: TerraNotConfigured, TerraFailed, TerraRefused.
    """

    async def request_data(self, kind: str, user_id: str, start: date, end: date) -> str:
        """Asks for the data of a connection."""


class ListsConnections(Protocol):
    """The connections that there are.

    Errors: StoreUnavailable.
    """

    async def active_connections(self, *, after: str, limit: int) -> Sequence[str]:
        """Terra's ids of active connections, in their order, those behind `after`."""


class ReplaysDeliveries(Protocol):
    """The deliveries that there are, and the log that they are appended to again.

    Errors: StoreUnavailable, BrokerUnavailable.
    """

    async def page(self, selection: Selection, after: Place, limit: int) -> Sequence[Matched]:
        """Deliveries of a selection, behind a place."""

    async def again(self, page: Sequence[Matched], replay_id: str) -> int:
        """Appends them again; returns of how many the log has the bytes."""


class Replays(Protocol):
    """What replays need."""

    async def replays(self) -> ReplaysDeliveries:
        """Deliveries to replay."""


class Outside(Protocol):
    """All of it; each is opened when it is first used."""

    async def terra(self) -> AsksTerra:
        """Terra."""

    async def connections(self) -> ListsConnections:
        """The connections."""
