"""The second agent: finds the user of a delivery that does not say whose it is.

It owns the table `terra_connections`, partitioned by subject (Terra's user id), because that is
what it looks users up by; deliveries about connections end here. A delivery whose connection is not
known yet waits in the compacted topic `waiting`. The delivery that brings the connection releases
it; a wait that lasts too long ends as a dead letter.

A `user_reauth` concerns two subjects and comes once under each; each copy writes the row of its own
subject, and the one under the new subject carries the outcome.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

import msgspec

from headwater.processors.providers.results import Failed, Normalized, Skipped
from headwater.processors.providers.terra.identity import (
    CONNECTION_TYPES,
    NO_CONNECTION,
    USER_REAUTH,
    previous_subject,
    user_of,
)
from headwater.processors.providers.terra.normalize import normalize
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.providers.terra import decode_envelope, decode_payload
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import CONNECTIONS
from headwater.schemas.topics import EVENTS, UNRESOLVED, WAITING
from headwater.streams.kafka.dead_letters import text_header
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.normalize import Rows
from headwater.streams.pipeline.stage_output import Emission

#: Headers of a waiting record: where in `unresolved` it was read, and when it was parked.
_OFFSET: Final = "headwater.offset"
_PARKED_AT: Final = "headwater.parked_at_ms"


def subjects_of(event: WebhookAdmitted) -> tuple[str, ...]:
    """The subjects whose rows a delivery writes; a `user_reauth` closes the one it replaces."""
    if event.type != USER_REAUTH:
        return (event.subject,)
    previous = previous_subject(event.type, decode_envelope(event.body))
    return (event.subject,) if previous is None else (event.subject, previous)


class _Waiting(NamedTuple):
    """A delivery that waits: its record as it was read, and since when."""

    record: Incoming
    parked_at_ms: int


class _Partition:
    """What is known of the subjects of one partition."""

    def __init__(self) -> None:
        self.connections = Rows()
        self.waiting: dict[str, dict[str, _Waiting]] = {}

    def user_of(self, subject: str) -> str | None:
        row = self.connections.get(CONNECTIONS, (subject,))
        user = row.values[CONNECTIONS.index["user_id"]] if row is not None else None
        return user if isinstance(user, str) else None


def _waiting_key(subject: str, event_id: str) -> bytes:
    return msgspec.json.encode((subject, event_id))


class Resolve:
    """Unresolved deliveries in; connections, events and outcomes out."""

    name: ClassVar[str] = "resolve"
    source: ClassVar[str] = UNRESOLVED
    memory: ClassVar[tuple[str, ...]] = (CONNECTIONS.topic, WAITING)

    def __init__(self, *, partitions: int, user_prefix: str, park_for_ms: int) -> None:
        self._partitions = partitions
        self._user_prefix = user_prefix
        self._park_for_ms = park_for_ms
        self._known: dict[int, _Partition] = {}

    def restored(self, record: Incoming) -> None:
        """Takes up a connection, a wait, or the end of a wait."""
        known = self._known.setdefault(record.partition, _Partition())
        if record.topic == CONNECTIONS.topic:
            if record.value is not None:
                known.connections.restored(CONNECTIONS, decode_row(CONNECTIONS, record.value))
            return
        subject, event_id = msgspec.json.decode(record.key or b"", type=tuple[str, str])
        if record.value is None:
            known.waiting.get(subject, {}).pop(event_id, None)
        else:
            parked_at_ms = int(text_header(record, _PARKED_AT) or 0)
            offset = int(text_header(record, _OFFSET) or 0)
            read = replace(
                record, topic=UNRESOLVED, offset=offset, key=subject.encode(), headers=()
            )
            known.waiting.setdefault(subject, {})[event_id] = _Waiting(read, parked_at_ms)

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
                self._resolve(known, (record.key or b"").decode(), event, record, emission)
            except Exception as error:  # noqa: BLE001, one bad record is one dead letter
                emission.failed(record, event, error)
        return known.connections.changed(partition) + emission.records

    def tick(self, partition: int, now_ms: int) -> list[Outgoing]:
        """Ends the waits that lasted too long."""
        emission = self._emission(now_ms)
        known = self._known.get(partition, _Partition())
        limit = now_ms - self._park_for_ms
        for subject, waiting in known.waiting.items():
            over = [key for key, wait in waiting.items() if wait.parked_at_ms <= limit]
            for event_id in over:
                wait = waiting.pop(event_id)
                key = _waiting_key(subject, event_id)
                emission.add(Outgoing(WAITING, partition, key, None))
                event = decode(wait.record.value, WebhookAdmitted)
                event = msgspec.structs.replace(event, parked_at_ms=wait.parked_at_ms)
                if event.subject == subject:
                    detail = (
                        f"expected a connection of the Terra user {subject} within "
                        f"{self._park_for_ms // 1000} s, found none; connect the user, then replay"
                    )
                    emission.dead(wait.record, event, NO_CONNECTION, detail)
        return emission.records

    def _emission(self, now_ms: int) -> Emission:
        return Emission(stage=self.name, partitions=self._partitions, now_ms=now_ms)

    def _resolve(
        self,
        known: _Partition,
        subject: str,
        event: WebhookAdmitted,
        record: Incoming,
        emission: Emission,
    ) -> None:
        told = event.user_id or user_of(event.reference, self._user_prefix)
        user = told or known.user_of(subject)
        if user is None:
            self._without_user(known, subject, event, record, emission)
            return
        event = msgspec.structs.replace(event, user_id=user)
        if event.type not in CONNECTION_TYPES:
            emission.keyed(EVENTS, user.encode(), encode(event))
            return
        if told is None:
            # Only this subject may know whose it is: tell the other one of a `user_reauth`.
            for other in subjects_of(event):
                if other != subject:
                    emission.keyed(UNRESOLVED, other.encode(), encode(event))
        self._connect(known, subject, event, record, emission)
        self._release(known, subject, emission)

    @staticmethod
    def _connect(
        known: _Partition,
        subject: str,
        event: WebhookAdmitted,
        record: Incoming,
        emission: Emission,
    ) -> None:
        result = normalize(event, decode_payload(event.type, event.body))
        if isinstance(result, Normalized):
            for update in result.updates:
                if update.key == (subject,):
                    known.connections.merge(update)
        if subject != event.subject:
            return
        match result:
            case Normalized(updates=updates):
                emission.outcome(event, record, "processed", rows=len(updates))
            case Skipped(reason=reason):
                emission.outcome(event, record, "skipped", reason)
            case Failed(code=code, detail=detail):
                emission.dead(record, event, code, detail)

    @staticmethod
    def _without_user(
        known: _Partition,
        subject: str,
        event: WebhookAdmitted,
        record: Incoming,
        emission: Emission,
    ) -> None:
        if event.type in CONNECTION_TYPES:
            result = normalize(event, decode_payload(event.type, event.body))
            if isinstance(result, Skipped):
                if subject == event.subject:
                    emission.outcome(event, record, "skipped", result.reason)
                return
        waiting = known.waiting.setdefault(subject, {})
        wait = waiting.setdefault(event.event_id, _Waiting(record, emission.now_ms))
        headers = [
            (_OFFSET, str(record.offset).encode()),
            (_PARKED_AT, str(wait.parked_at_ms).encode()),
        ]
        key = _waiting_key(subject, event.event_id)
        emission.add(Outgoing(WAITING, record.partition, key, record.value, headers))
        if subject == event.subject:
            event = msgspec.structs.replace(event, parked_at_ms=wait.parked_at_ms)
            emission.outcome(event, record, "parked", NO_CONNECTION)

    def _release(self, known: _Partition, subject: str, emission: Emission) -> None:
        if known.user_of(subject) is None:
            return  # The delivery about the connection was a dead letter itself.
        for event_id, wait in known.waiting.pop(subject, {}).items():
            record = wait.record
            emission.add(Outgoing(WAITING, record.partition, _waiting_key(subject, event_id), None))
            event = decode(record.value, WebhookAdmitted)
            event = msgspec.structs.replace(
                event, parked_at_ms=wait.parked_at_ms, released_at_ms=emission.now_ms
            )
            self._resolve(known, subject, event, record, emission)
