"""What the house's own workflows need of the outside: ports, reached from their steps alone."""

from collections.abc import Sequence
from datetime import date
from typing import Protocol


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


class Outside(Protocol):
    """All of it; each is opened when it is first used."""

    async def terra(self) -> AsksTerra:
        """Terra."""

    async def connections(self) -> ListsConnections:
        """The connections."""
