"""What the house's own workflows need of the outside: ports, reached from their steps alone."""

from collections.abc import Collection, Sequence
from datetime import date
from typing import Protocol

from headwater.gateway.blobs.store import Blobs
from headwater.projections.workflows.expired import Expired, Expiry, Kept
from headwater.schemas.providers.headwater import Fact


class AsksTerra(Protocol):
    """Terra's API, as workflows use it.

    Errors: TerraNotConfigured, TerraFailed, TerraRefused.
    """

    async def request_data(self, kind: str, user_id: str, start: date, end: date) -> str:
        """Asks for the data of a connection."""

    async def upload_lab_report(
        self, reference_id: str, *, name: str, content_type: str, content: bytes
    ) -> tuple[str, str]:
        """Gives Terra a lab report to read; gives the id of the upload, and the whole answer."""


class ListsConnections(Protocol):
    """The connections that there are.

    Errors: StoreUnavailable.
    """

    async def active_connections(self, *, after: str, limit: int) -> Sequence[str]:
        """Terra's ids of active connections, in the order of their MD5, those behind a digest."""

    async def active_connections_of(self, digests: Collection[str]) -> Sequence[str]:
        """Terra's ids of those active connections that have one of some digests."""


class PrunesInstances(Protocol):
    """The instances that are kept no longer.

    Errors: StoreUnavailable, BrokerUnavailable, OutcomeUnknown, Overloaded.
    """

    async def expired(self, asked: Expiry, after: Kept, limit: int) -> Sequence[Expired]:
        """Those that are past their retention, behind a place."""

    async def delete_unchanged(self, page: Sequence[Expired]) -> int:
        """Deletes those to which nothing has happened since Postgres knew them; how many."""

    async def erase(self) -> int:
        """Has the log forget those that are deleted; returns how many records."""


class TellsFacts(Protocol):
    """The log of deliveries, for what the house itself has learnt."""

    async def publish_fact(self, fact: Fact, *, request_id: str) -> object:
        """Appends a fact; when it returns, that is durable.

        Errors: BrokerUnavailable, Overloaded; telling it again is safe.
        """


class Outside(Protocol):
    """All of it; each is opened when it is first used."""

    async def terra(self) -> AsksTerra:
        """Terra."""

    async def connections(self) -> ListsConnections:
        """The connections."""

    async def blobs(self) -> Blobs:
        """The blobs."""

    async def facts(self) -> TellsFacts:
        """The log of deliveries."""
