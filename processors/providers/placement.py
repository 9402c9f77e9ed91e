"""Where a delivery lies: in the partition of whoever owns what it changes.

One worker owns all rows of one key. A delivery that lies in its owner's partition from the start
is processed in one step, by the worker that reads it; so the gateway asks this function before it
appends. Copies of a delivery have the same owner, and meet in one partition.
"""

from typing import Any, NamedTuple

from headwater.processors.providers.envelope import user_of
from headwater.processors.providers.provider import DeliveryType, Providers
from headwater.schemas.records import Delivery


class Placement(NamedTuple):
    """What decides on the owner of a delivery: the same for gateways and workers of one house."""

    providers: Providers
    user_prefix: str

    def kind_of(self, delivery: Delivery) -> DeliveryType[Any] | None:
        """The type of a delivery, None if no provider here declares it."""
        provider = self.providers.get(delivery.source)
        return None if provider is None else provider.types.get(delivery.type)

    def user_of(self, delivery: Delivery) -> str | None:
        """The user that a delivery names; None if it names none of ours."""
        provider = self.providers.get(delivery.source)
        if provider is not None and provider.scheme is None:
            return delivery.reference
        return user_of(delivery.reference, self.user_prefix)

    def owner_of(self, delivery: Delivery) -> str:
        """Whose partition a delivery lies in.

        Shape:  the subject, where it fills a lookup or is not of a user; else the user that it
                names, else the subject. A delivery that names neither is its own owner.
        """
        kind = self.kind_of(delivery)
        if kind is None or (kind.of_user and not kind.fills_lookup):
            user = self.user_of(delivery)
            return user or delivery.subject or delivery.event_id
        return delivery.subject or delivery.event_id
