"""The second agent: finds the user of a delivery that does not name one of ours.

It owns the tables in which users are looked up, such as `terra_connections`: partitioned by
subject, the provider's id, because that is what users are looked up by. Deliveries that fill them
end here. A delivery whose user is not known yet waits in the compacted topic `waiting`. The
delivery that brings the user releases it; a wait that lasts too long ends as a dead letter.

A delivery can concern two subjects and comes once under each; each copy writes the row of its own
subject, and the one under the subject that the delivery names first carries the outcome.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.providers.envelope import user_of
from headwater.processors.providers.provider import (
    DeliveryType,
    Lookup,
    Provider,
    Providers,
    lookup_tables,
)
from headwater.processors.providers.results import Normalized
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.errors import NotYetReadable, UnknownSource
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import TABLE_BY_TOPIC
from headwater.schemas.topics import EVENTS, UNRESOLVED, WAITING
from headwater.streams.kafka.dead_letters import text_header
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.normalize import Rows
from headwater.streams.pipeline.stage_output import Emission

#: Headers of a waiting record: where in `unresolved` it was read, and when it was parked.
_OFFSET: Final = "headwater.offset"
_PARKED_AT: Final = "headwater.parked_at_ms"

#: Whose deliveries wait for one another: the table of the lookup, and the subject in it.
_Wanted: TypeAlias = tuple[str, str]


class _Waiting(NamedTuple):
    """A delivery that waits: its record as it was read, and since when."""

    record: Incoming
    parked_at_ms: int


class _Partition:
    """What is known of the subjects of one partition."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.waiting: dict[_Wanted, dict[str, _Waiting]] = {}

    def user_of(self, lookup: Lookup, subject: str) -> str | None:
        row = self.rows.get(lookup.table, (subject,))
        return None if row is None else lookup.user_in(row.values)


class _Found(NamedTuple):
    """A delivery, where it was read, and what its provider declares of its type."""

    event: WebhookAdmitted
    subject: str
    record: Incoming
    provider: Provider
    kind: DeliveryType[Any]
    lookup: Lookup

    @property
    def wanted(self) -> _Wanted:
        return (self.lookup.table.name, self.subject)

    @property
    def waiting_key(self) -> bytes:
        """The key of its wait in the topic `waiting`."""
        return msgspec.json.encode((*self.wanted, self.event.event_id))

    @property
    def carries_outcome(self) -> bool:
        """Whether this copy is the one whose outcome is recorded."""
        return self.subject == self.event.subject


class Resolve:
    """Unresolved deliveries in; rows of lookups, events and outcomes out."""

    name: ClassVar[str] = "resolve"
    source: ClassVar[str] = UNRESOLVED

    def __init__(
        self, *, providers: Providers, partitions: int, user_prefix: str, park_for_ms: int
    ) -> None:
        self._providers = providers
        self._partitions = partitions
        self._user_prefix = user_prefix
        self._park_for_ms = park_for_ms
        self._known: dict[int, _Partition] = {}
        self.memory: tuple[str, ...] = (
            *(table.topic for table in lookup_tables(providers)),
            WAITING,
        )

    def restored(self, record: Incoming) -> None:
        """Takes in a row of a lookup, a wait, or the end of a wait."""
        known = self._known.setdefault(record.partition, _Partition())
        if record.topic != WAITING:
            if record.value is not None:
                table = TABLE_BY_TOPIC[record.topic]
                known.rows.restored(table, decode_row(table, record.value))
            return
        table_name, subject, event_id = msgspec.json.decode(
            record.key or b"", type=tuple[str, str, str]
        )
        wanted = (table_name, subject)
        if record.value is None:
            known.waiting.get(wanted, {}).pop(event_id, None)
        else:
            parked_at_ms = int(text_header(record, _PARKED_AT) or 0)
            offset = int(text_header(record, _OFFSET) or 0)
            read = replace(
                record, topic=UNRESOLVED, offset=offset, key=subject.encode(), headers=()
            )
            known.waiting.setdefault(wanted, {})[event_id] = _Waiting(read, parked_at_ms)

    def forget(self, partition: int) -> None:
        """Drops what is known of a partition."""
        self._known.pop(partition, None)

    def step(self, partition: int, records: Sequence[Incoming], now_ms: int) -> list[Outgoing]:
        """Resolves a batch."""
        emission = self._emission(now_ms)
        known = self._known.setdefault(partition, _Partition())
        for record in records:
            event = None
            try:
                event = decode(record.value, WebhookAdmitted)
                self._resolve(known, self._found(event, record), emission)
            except NotYetReadable:
                raise
            except Exception as error:  # noqa: BLE001, one bad record is one dead letter
                emission.failed(record, event, error)
        return known.rows.changed(partition) + emission.records

    def tick(self, partition: int, now_ms: int) -> list[Outgoing]:
        """Ends the waits that lasted too long."""
        emission = self._emission(now_ms)
        known = self._known.get(partition, _Partition())
        limit = now_ms - self._park_for_ms
        for waiting in known.waiting.values():
            over = [key for key, wait in waiting.items() if wait.parked_at_ms <= limit]
            for event_id in over:
                if self._give_up(waiting[event_id], emission):
                    del waiting[event_id]
        known.waiting = {wanted: waiting for wanted, waiting in known.waiting.items() if waiting}
        return emission.records

    def _emission(self, now_ms: int) -> Emission:
        return Emission(stage=self.name, partitions=self._partitions, now_ms=now_ms)

    def _found(self, event: WebhookAdmitted, record: Incoming) -> _Found:
        found = self._find(event, record)
        if found is None:
            raise UnknownSource(
                f"expected a type whose users are looked up, found {event.type} of {event.source}; "
                "usual cause: another release, or another set of packages, admitted the delivery"
            )
        return found

    def _find(self, event: WebhookAdmitted, record: Incoming) -> _Found | None:
        """What a delivery's provider declares of it; None if that is nothing, or no lookup."""
        provider = self._providers.get(event.source)
        kind = None if provider is None else provider.types.get(event.type)
        if provider is None or kind is None or kind.lookup is None:
            return None
        subject = (record.key or b"").decode()
        return _Found(event, subject, record, provider, kind, kind.lookup)

    def _resolve(self, known: _Partition, found: _Found, emission: Emission) -> None:
        event, kind, subject = found.event, found.kind, found.subject
        named = event.user_id or user_of(event.reference, self._user_prefix)
        user = named or known.user_of(found.lookup, subject)
        if user is None:
            self._without_user(known, found, emission)
            return
        event = msgspec.structs.replace(event, user_id=user)
        if not kind.fills_lookup:
            emission.keyed(EVENTS, user.encode(), encode(event))
            return
        if named is None:
            # Perhaps only this subject's row names the user: send it on to the other subject.
            for other in kind.subjects_of(event):
                if other != subject:
                    emission.keyed(UNRESOLVED, other.encode(), encode(event))
        self._fill(known, found._replace(event=event), emission)
        self._release(known, found, emission)

    @staticmethod
    def _fill(known: _Partition, found: _Found, emission: Emission) -> None:
        """Writes the subject's row of the lookup."""
        event = found.event
        result = found.provider.normalize(event)
        if isinstance(result, Normalized):
            for update in result.updates:
                if update.key == (found.subject,):
                    known.rows.merge(update)
        if found.carries_outcome:
            emission.normalized(event, found.record, result)

    @staticmethod
    def _without_user(known: _Partition, found: _Found, emission: Emission) -> None:
        event, record = found.event, found.record
        reason = found.kind.skip_reason(event.body)
        if reason is not None:
            if found.carries_outcome:
                emission.outcome(event, record, "skipped", reason)
            return
        waiting = known.waiting.setdefault(found.wanted, {})
        wait = waiting.setdefault(event.event_id, _Waiting(record, emission.now_ms))
        headers = [
            (_OFFSET, str(record.offset).encode()),
            (_PARKED_AT, str(wait.parked_at_ms).encode()),
        ]
        emission.add(Outgoing(WAITING, record.partition, found.waiting_key, record.value, headers))
        if found.carries_outcome:
            event = msgspec.structs.replace(event, parked_at_ms=wait.parked_at_ms)
            emission.outcome(event, record, "parked", found.lookup.missing)

    def _release(self, known: _Partition, found: _Found, emission: Emission) -> None:
        """Goes on with the deliveries that waited for a subject's user."""
        if known.user_of(found.lookup, found.subject) is None:
            return  # The delivery that fills the lookup was a dead letter itself.
        waiting = known.waiting.pop(found.wanted, {})
        for event_id, wait in waiting.items():
            event = decode(wait.record.value, WebhookAdmitted)
            event = msgspec.structs.replace(
                event, parked_at_ms=wait.parked_at_ms, released_at_ms=emission.now_ms
            )
            waited = self._find(event, wait.record)
            if waited is None:  # Only a worker that has its provider can go on with it.
                known.waiting.setdefault(found.wanted, {})[event_id] = wait
                continue
            emission.add(Outgoing(WAITING, wait.record.partition, waited.waiting_key, None))
            try:
                self._resolve(known, waited, emission)
            except NotYetReadable:
                raise
            except Exception as error:  # noqa: BLE001, nor does it harm those that wait beside it
                emission.failed(wait.record, event, error)

    def _give_up(self, wait: _Waiting, emission: Emission) -> bool:
        """Ends a wait that lasted too long; False if only a worker with its provider can."""
        event = decode(wait.record.value, WebhookAdmitted)
        event = msgspec.structs.replace(event, parked_at_ms=wait.parked_at_ms)
        found = self._find(event, wait.record)
        if found is None:
            return False
        emission.add(Outgoing(WAITING, wait.record.partition, found.waiting_key, None))
        if found.carries_outcome:
            lookup, seconds = found.lookup, self._park_for_ms // 1000
            detail = (
                f"expected {lookup.expected} {found.subject} within {seconds} s, found none; "
                f"{lookup.cure}"
            )
            emission.dead(wait.record, found.event, lookup.missing, detail)
        return True
