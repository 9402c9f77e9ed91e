"""The last agent: turns deliveries into rows. One worker owns all rows of a user."""

from collections.abc import Sequence
from typing import ClassVar

from headwater.processors.columns import RowUpdate, merge
from headwater.processors.providers.provider import Providers, row_tables
from headwater.processors.providers.results import Normalized
from headwater.schemas.codec import decode, decode_row, encode_row
from headwater.schemas.errors import NotYetReadable, UnknownSource
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import TABLE_BY_TOPIC, Row, Table
from headwater.schemas.topics import EVENTS
from headwater.streams.kafka.dead_letters import RULE, text_header
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.stage_output import Emission


class Rows:
    """The rows of one partition of some tables, and which of them a batch changed."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, tuple[str, ...]], Row] = {}
        self._changed: dict[tuple[str, tuple[str, ...]], Table] = {}

    def restored(self, table: Table, row: Row) -> None:
        """Takes in a row as it is in the log."""
        self._rows[table.name, row.key] = row

    def get(self, table: Table, key: tuple[str, ...]) -> Row | None:
        """A row, None when there is none."""
        return self._rows.get((table.name, key))

    def merge(self, update: RowUpdate) -> None:
        """Merges an update into its row."""
        key = (update.table.name, update.key)
        held = self._rows.get(key)
        row = merge(held, update)
        if row is not held:
            self._rows[key] = row
            self._changed[key] = update.table

    def changed(self, partition: int) -> list[Outgoing]:
        """The rows that changed since the last call: each once, however often it was set."""
        out = []
        for key, table in self._changed.items():
            row = self._rows[key]
            out.append(
                Outgoing(table.topic, partition, table.row_key(row.key), encode_row(table, row))
            )
        self._changed.clear()
        return out


class Normalize:
    """Events in; rows, outcomes and traces out."""

    name: ClassVar[str] = "normalize"
    source: ClassVar[str] = EVENTS

    def __init__(self, *, providers: Providers, partitions: int) -> None:
        self._providers = providers
        self._partitions = partitions
        self.memory: tuple[str, ...] = tuple(table.topic for table in row_tables(providers))
        self._rows: dict[int, Rows] = {}

    def restored(self, record: Incoming) -> None:
        """Takes in a row."""
        if record.value is not None:
            table = TABLE_BY_TOPIC[record.topic]
            rows = self._rows.setdefault(record.partition, Rows())
            rows.restored(table, decode_row(table, record.value))

    def forget(self, partition: int) -> None:
        """Drops the rows of a partition."""
        self._rows.pop(partition, None)

    def tick(self, partition: int, now_ms: int) -> list[Outgoing]:
        """Nothing is ever due."""
        return []

    def step(self, partition: int, records: Sequence[Incoming], now_ms: int) -> list[Outgoing]:
        """Normalizes a batch of events."""
        emission = Emission(stage=self.name, partitions=self._partitions, now_ms=now_ms)
        rows = self._rows.setdefault(partition, Rows())
        for record in records:
            if record.headers and text_header(record, RULE) is not None:
                continue
            event = None
            try:
                event = decode(record.value, WebhookAdmitted)
                self._normalize(rows, event, record, emission)
            except NotYetReadable:
                raise
            except Exception as error:  # noqa: BLE001, one bad record is one dead letter
                emission.failed(record, event, error)
        return rows.changed(partition) + emission.records

    def _normalize(
        self, rows: Rows, event: WebhookAdmitted, record: Incoming, emission: Emission
    ) -> None:
        provider = self._providers.get(event.source)
        if provider is None:
            known = ", ".join(self._providers)
            raise UnknownSource(
                f"expected a delivery of {known}, found one of {event.source}; usual cause: its "
                "package is not installed beside this worker"
            )
        result = provider.normalize(event)
        if isinstance(result, Normalized):
            for update in result.updates:
                rows.merge(update)
        emission.normalized(event, record, result)
