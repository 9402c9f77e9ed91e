"""What the house's own workflows need of the outside: ports, reached from their steps alone."""

from collections.abc import Sequence
from datetime import date
from typing import Protocol

from headwater.projections.deliveries.replaying import Matched, Place, Selection
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


class ReadsBlobs(Protocol):
    """Files that users have uploaded.

    Errors: BlobNotFound, BlobsUnavailable.
    """

    async def read(self, key: str) -> bytes:
        """A blob."""


class TellsFacts(Protocol):
    """The log of deliveries, for what the house itself has learnt."""

    async def tell(self, fact: Fact, *, request_id: str) -> object:
        """Appends a fact; when it returns, that is durable.

        Errors: BrokerUnavailable, Overloaded; telling it again is safe.
        """


class Outside(Protocol):
    """All of it; each is opened when it is first used."""

    async def terra(self) -> AsksTerra:
        """Terra."""

    async def connections(self) -> ListsConnections:
        """The connections."""

    async def blobs(self) -> ReadsBlobs:
        """The blobs."""

    async def facts(self) -> TellsFacts:
        """The log of deliveries."""
