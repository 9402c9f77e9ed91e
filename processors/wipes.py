"""Wipes: which deliveries a user's wipe covers, and what is left of a row without them.

A wipe has a fence: an offset for each partition of `webhooks`. It covers what is the user's and
lies before the fence, by whatever way and however late it arrives. So it needs no order: whoever
knows the fences comes to the same rows, and what lies behind them is new data (ADR 0029).

Fences are kept for as long as something of before could come back, so they name the user, and the
subjects that were the user's, by digests alone.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from headwater.schemas.history import StartRun
from headwater.schemas.records import EffectDecided, UserForgotten, WebhookReceived
from headwater.schemas.tables import Row, Table, begins_with_user

#: The delivery that orders a wipe: nobody can post one, for the house is no source.
SOURCE: Final = "headwater"
TYPE: Final = "user_wiped"
#: The built-in workflow that deletes instances about the user, and the effect that starts it. The
#: instance id is the wipe's.
FORGET: Final = "headwater-forget"


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the body of a delivery `user_wiped` says; each partition of `webhooks` has one.

    Shape:  fence is an offset for each partition.
    """

    wipe_id: str
    user_id: str
    fence: tuple[int, ...]


class ForgetParams(msgspec.Struct, frozen=True, kw_only=True):
    """What `headwater-forget` is started with: the same by each of the partitions."""

    user_sha256: str
    partitions: int
    ordered_at_ms: int


class Forgotten(msgspec.Struct, frozen=True):
    """What it has come to: instances that were deleted, records that go when Kafka compacts."""

    instances: int = 0
    records: int = 0


def forget_effect(order: Order, delivery: WebhookReceived) -> EffectDecided:
    """The effect of an order: instances about the user are forgotten, too."""
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


def order_of(delivery: WebhookReceived) -> Order | None:
    """The order to wipe that a delivery is; None for every other delivery.

    Errors: msgspec.ValidationError for one that is not ours.
    """
    if delivery.source != SOURCE or delivery.type != TYPE:
        return None
    return msgspec.json.decode(delivery.body, type=Order)


def digest(name: str) -> str:
    """What stands for a user or a subject once nothing may name them any more."""
    return sha256(name.encode(errors="surrogatepass")).hexdigest()


def is_before(fence: Sequence[int], partition: int, offset: int) -> bool:
    """Whether a place in `webhooks` lies before a fence."""
    return partition < len(fence) and offset < fence[partition]


def remaining_row(row: Row, fence: Sequence[int]) -> Row | None:
    """A row without the columns that deliveries before a fence have set; None if none is left."""
    stamps = tuple(
        None if stamp is None or is_before(fence, stamp.partition, stamp.offset) else stamp
        for stamp in row.stamps
    )
    if not any(stamps):
        return None
    values = tuple(
        None if stamp is None else value for value, stamp in zip(row.values, stamps, strict=True)
    )
    return Row(row.key, values, stamps)


def user_in(table: Table, row: Row) -> str | None:
    """The user that a row names, if it names one."""
    if begins_with_user(table):
        return row.key[0]
    at = table.index.get("user_id")
    user = None if at is None else row.values[at]
    return user if isinstance(user, str) else None


class Fences:
    """The fences of a partition's wipes: what of a user does not count any more."""

    def __init__(self) -> None:
        self._fences: dict[str, list[Sequence[int]]] = {}
        #: Behind it nothing is covered, and nobody has to look further.
        self._highest: tuple[int, ...] = ()

    def add(self, wipe: UserForgotten) -> None:
        """Takes in a wipe."""
        for name in wipe.digests:
            known = self._fences.setdefault(name, [])
            if wipe.fence not in known:
                known.append(wipe.fence)
        width = max(len(self._highest), len(wipe.fence))
        self._highest = tuple(
            max((fence[at] for fence in (self._highest, wipe.fence) if at < len(fence)), default=0)
            for at in range(width)
        )

    def reach(self, partition: int, offset: int) -> bool:
        """Whether any of them covers deliveries at a place, as it seldom does."""
        return is_before(self._highest, partition, offset)

    def cover(self, names: Iterable[str | None], partition: int, offset: int) -> bool:
        """Whether a delivery that names somebody, and lies at a place, is wiped."""
        return self.reach(partition, offset) and any(
            is_before(fence, partition, offset)
            for name in names
            if name
            for fence in self._fences.get(digest(name), ())
        )

    def remaining(self, user: str | None, row: Row) -> Row | None:
        """What is left of a row of a user that was made of deliveries of any time."""
        left: Row | None = row
        for fence in self._fences.get(digest(user), ()) if user else ():
            left = None if left is None else remaining_row(left, fence)
        return left
