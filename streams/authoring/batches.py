"""Batches of instances to create, as client programs and tests pass them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headwater.processors.runs.limits import INSTANCE_ID_MAX, INSTANCE_ID_TOP, name_problem
from headwater.schemas.failures import INVALID_INSTANCE_ID, refused
from headwater.streams.authoring.request_arguments import checked_instance_id


class NewInstance(NamedTuple):
    """An instance to create."""

    id: str
    params: Any
    #: Not validated yet.
    labels: Any


def parse_batch(batch: Iterable[Mapping[str, Any]]) -> list[NewInstance]:
    """Parse a batch of instances.

    Raises:
        ValueError: An item is not a mapping with "id" and optionally "params" and "labels". The
            message has its index.
        InvalidInstanceIdError: An id breaks the rules of every server.
    """
    instances = []
    for number, item in enumerate(batch):
        untyped: object = item
        known = isinstance(untyped, Mapping) and untyped.keys() <= {"id", "params", "labels"}
        if not known or "id" not in item:
            raise ValueError(
                'expected each item of a batch to be {"id": …}, optionally with "params" and '
                f'"labels", found {untyped!r:.200} as number {number}'
            )
        instance_id = checked_instance_id(item["id"])
        if name_problem("an instance id", instance_id, INSTANCE_ID_TOP):
            # A server may be configured to allow longer ids than the default.
            problem = name_problem("an instance id", instance_id, INSTANCE_ID_MAX)
            raise refused(INVALID_INSTANCE_ID, f"{problem}, as number {number} of the batch")
        instances.append(NewInstance(instance_id, item.get("params"), item.get("labels") or {}))
    return instances
