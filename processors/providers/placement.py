"""Which partition a delivery belongs to: that of the owner of the rows that it changes.

One worker owns all rows of one key. A delivery that is appended to its owner's partition is
processed in one step, by the worker that reads it, so the gateway calls this function before it
appends. Copies of a delivery have the same owner, and end up in one partition.
"""

from typing import Any, NamedTuple

from headwater.processors.providers.envelope import user_of
from headwater.processors.providers.provider import DeliveryType, Providers
from headwater.schemas.records import Delivery


class Placement(NamedTuple):
    """What determines the owner of a delivery: equal in all gateways and workers of a system."""

    providers: Providers
    user_prefix: str

    def kind_of(self, delivery: Delivery) -> DeliveryType[Any] | None:
        """Return the type of a delivery; None if no provider here declares it."""
        provider = self.providers.get(delivery.source)
        return None if provider is None else provider.types.get(delivery.type)

    def user_of(self, delivery: Delivery) -> str | None:
        """Return the user that a delivery names, or None."""
        provider = self.providers.get(delivery.source)
        if provider is not None and provider.scheme is None:
            return delivery.reference
        return user_of(delivery.reference, self.user_prefix)

    def owner_of(self, delivery: Delivery) -> str:
        """Return the key of the partition that a delivery belongs to.

        This is the subject if the delivery fills a lookup or is not about a user; otherwise the
        user that it names, otherwise the subject. Without either it is the delivery's own id.
        """
        kind = self.kind_of(delivery)
        if kind is None or (kind.of_user and not kind.fills_lookup):
            user = self.user_of(delivery)
            return user or delivery.subject or delivery.event_id
        return delivery.subject or delivery.event_id
