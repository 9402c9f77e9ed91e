"""Wipes: which deliveries a user's wipe covers, and what remains of a row without them.

A wipe has a fence: one offset per partition of `webhooks`. It covers the user's data from before
the fence, however late and by whatever path it arrives. So it needs no order: every process that
knows the fences computes the same rows, and data after the fences is new (ADR 0029).

It is ordered twice. From the first order on, deliveries that name the user are skipped; so the
second one has the positions of the first as its fence (ADR 0079). A user who comes back after the
first order keeps everything.

Fences are kept as long as older data could reappear. They identify the user and the user's former
subjects only by digests.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from headwater.processors.columns import without
from headwater.schemas.history import StartRun
from headwater.schemas.records import EffectDecided, NameAccepted, UserForgotten, WebhookReceived
from headwater.schemas.tables import Row, Table, begins_with_user

#: Source and type of the delivery that orders a wipe. No client can post it: it is not a source.
SOURCE: Final = "headwater"
TYPE: Final = "user_wiped"
#: How long deliveries that name a wiped user or connection are skipped, with this reason: the
#: sender may not know of the wipe, and would bring everything back.
SKIPPED_MS: Final = 30 * 24 * 60 * 60 * 1000
WIPED: Final = "wiped"
_SECOND_MS: Final = 1_000
#: The built-in workflow that deletes instances about the user, and the effect that starts it. The
#: instance id is the wipe's.
FORGET: Final = "headwater-forget"


class WipeOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a delivery `user_wiped`; every partition of `webhooks` has one of each order.

    Attributes:
        fence: One offset per partition.
        subjects: The user's subjects as Postgres knows them. A partition knows only those that it
            owns, and may have unreadable deliveries of the others.
        topics: End offsets of the topics of sources.
    """

    wipe_id: str
    user_id: str
    fence: tuple[int, ...]
    subjects: tuple[str, ...] = ()
    topics: dict[str, tuple[int, ...]] = {}


class ForgetParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of `headwater-forget`; all partitions start it with the same ones."""

    user_sha256: str
    partitions: int
    ordered_at_ms: int


class ForgetResult(msgspec.Struct, frozen=True):
    """Result of `headwater-forget`: deleted instances, and records to be removed by compaction."""

    instances: int = 0
    records: int = 0


def forget_effect(order: WipeOrder, delivery: WebhookReceived) -> EffectDecided:
    """Return the effect of an order: instances about the user are deleted as well."""
    params = ForgetParams(
        user_sha256=digest(order.user_id),
        partitions=len(order.fence),
        ordered_at_ms=delivery.received_at_ms,
    )
    return EffectDecided(
        event_id=delivery.event_id,
        request_id=delivery.request_id,
        name=FORGET,
        workflow=FORGET,
        instance_id=order.wipe_id,
        command=StartRun(msgspec.json.encode(params).decode()),
    )


def wipe_order_of(delivery: WebhookReceived) -> WipeOrder | None:
    """Return the wipe order in a delivery; None for any other delivery.

    Raises:
        msgspec.ValidationError: The order was not written by Headwater.
    """
    if delivery.source != SOURCE or delivery.type != TYPE:
        return None
    return msgspec.json.decode(delivery.body, type=WipeOrder)


def digest(name: str) -> str:
    """Return what identifies a user or a subject after its name must no longer be stored."""
    return sha256(name.encode(errors="surrogatepass")).hexdigest()


def is_sent_after(sent_at_ms: int, wiped_at_ms: int) -> bool:
    """Return whether a delivery was sent after a wipe.

    Signatures have whole seconds, so a second counts to its end.
    """
    is_whole = sent_at_ms % _SECOND_MS == 0
    return sent_at_ms + (_SECOND_MS - 1 if is_whole else 0) > wiped_at_ms


def accepting(wipe: UserForgotten, names: Iterable[NameAccepted]) -> UserForgotten | None:
    """Return a wipe that accepts names again; None if that changes nothing.

    A name has one acceptance for each partition: a later fence may cover one and not the other.
    """
    added = [name for name in names if name.sha256 in wipe.digests and name not in wipe.accepted]
    if not added:
        return None
    replaced = {(name.sha256, name.partition) for name in added}
    others = [old for old in wipe.accepted if (old.sha256, old.partition) not in replaced]
    return msgspec.structs.replace(wipe, accepted=(*others, *added))


def is_before(fence: Sequence[int], partition: int, offset: int) -> bool:
    """Return whether a position in `webhooks` is before a fence."""
    return partition < len(fence) and offset < fence[partition]


def remaining_row(table: Table, row: Row, fence: Sequence[int]) -> Row | None:
    """Return a row without what deliveries before a fence set; None if nothing remains."""
    return without(table, row, lambda stamp: is_before(fence, stamp.partition, stamp.offset))


def user_in(table: Table, row: Row) -> str | None:
    """Return the user that a row names, or None."""
    if begins_with_user(table):
        return row.key[0]
    position = table.index.get("user_id")
    user = None if position is None else row.values[position]
    return user if isinstance(user, str) else None


class Fences:
    """The fences of a partition's wipes: which data of a user no longer counts.

    After a wipe, deliveries that name the user or a former subject are skipped for `SKIPPED_MS`, or
    until the name is accepted again. A record that was in a source's topic before the wipe is
    skipped whenever it is read: the topic may keep it for years, and be read again. Its position
    shows that; its time may be that of an event.
    """

    def __init__(self) -> None:
        self._fences: dict[str, list[Sequence[int]]] = {}
        #: By digest, the time of the latest wipe, and by what it is accepted again.
        self._wiped_ms: dict[str, int] = {}
        self._accepted: dict[str, set[NameAccepted]] = {}
        #: Ends of a source's topic, by digest and topic.
        self._topics: dict[tuple[str, str], list[Sequence[int]]] = {}
        #: Time of the last wipe: much later deliveries need no further check.
        self._last_ms = -SKIPPED_MS
        #: Nothing at or after these offsets is covered, so no further check is needed.
        self._highest: tuple[int, ...] = ()

    def add(self, wipe: UserForgotten) -> None:
        """Add a wipe."""
        for name in wipe.digests:
            known = self._fences.setdefault(name, [])
            if wipe.fence not in known:
                known.append(wipe.fence)
            self._wiped_ms[name] = max(wipe.ordered_at_ms, self._wiped_ms.get(name, 0))
            for source in wipe.topics:
                ends = self._topics.setdefault((name, source.topic), [])
                if source.ends not in ends:
                    ends.append(source.ends)
        self._last_ms = max(self._last_ms, wipe.ordered_at_ms)
        self.accept(wipe.accepted)
        width = max(len(self._highest), len(wipe.fence))
        self._highest = tuple(
            max(
                (fence[index] for fence in (self._highest, wipe.fence) if index < len(fence)),
                default=0,
            )
            for index in range(width)
        )

    def accept(self, names: Iterable[NameAccepted]) -> None:
        """Accept names again."""
        for name in names:
            self._accepted.setdefault(name.sha256, set()).add(name)

    def wiped_since(self, names: Iterable[str | None], at_ms: int) -> int | None:
        """Return the time of the last wipe of these names, if it is less than 30 days ago."""
        times = [self._wiped_ms.get(digest(name), 0) for name in names if name]
        last_ms = max(times, default=0)
        return last_ms if last_ms and at_ms < last_ms + SKIPPED_MS else None

    def skips_since(self, names: Iterable[str | None], at_ms: int, origin: str = "") -> int | None:
        """Return the time of the wipe for which a delivery with these names is skipped, or None.

        Args:
            names: Users and subjects that the delivery names.
            at_ms: When it was received, in Unix milliseconds.
            origin: Position of its record in a source's topic; empty for a webhook.
        """
        if at_ms >= self._last_ms + SKIPPED_MS and not (origin and self._topics):
            return None
        times = [self._skipped_for(digest(name), at_ms, origin) for name in names if name]
        return max((time for time in times if time is not None), default=None)

    def _skipped_for(self, name: str, at_ms: int, origin: str) -> int | None:
        wiped_ms = self._wiped_ms.get(name)
        if wiped_ms is None or (origin and self._was_in_topic(name, origin)):
            return wiped_ms
        if at_ms >= wiped_ms + SKIPPED_MS:
            return None
        is_accepted = any(
            accepted.at_ms <= at_ms and not self._covers(name, accepted.partition, accepted.offset)
            for accepted in self._accepted.get(name, ())
        )
        return None if is_accepted else wiped_ms

    def _was_in_topic(self, name: str, origin: str) -> bool:
        """Return whether a record was in a source's topic before a wipe of a name."""
        topic_partition, _, offset = origin.rpartition("@")
        topic, _, partition = topic_partition.rpartition("/")
        fences = self._topics.get((name, topic), ())
        return any(is_before(ends, int(partition), int(offset)) for ends in fences)

    def reach(self, partition: int, offset: int) -> bool:
        """Return whether any fence may cover deliveries at a position, which is rare."""
        return is_before(self._highest, partition, offset)

    def cover(self, names: Iterable[str | None], partition: int, offset: int) -> bool:
        """Return whether a delivery at a position that names these users or subjects is wiped."""
        return self.reach(partition, offset) and any(
            self._covers(digest(name), partition, offset) for name in names if name
        )

    def _covers(self, name: str, partition: int, offset: int) -> bool:
        return any(is_before(fence, partition, offset) for fence in self._fences.get(name, ()))

    def remaining(self, table: Table, user: str | None, row: Row) -> Row | None:
        """Return what remains of a user's row that was computed from deliveries of any time."""
        remaining: Row | None = row
        for fence in self._fences.get(digest(user), ()) if user else ():
            remaining = None if remaining is None else remaining_row(table, remaining, fence)
        return remaining
