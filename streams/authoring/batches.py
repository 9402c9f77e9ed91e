"""Batches of instances to create, as programs and tests write them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headwater.processors.runs.limits import INSTANCE_ID_MAX, INSTANCE_ID_TOP, name_problem
from headwater.schemas.failures import INVALID_INSTANCE_ID, refused
from headwater.streams.authoring.request_arguments import checked_instance_id


class New(NamedTuple):
    """An instance to be created."""

    id: str
    params: Any
    #: As they were passed.
    labels: Any


def batch_of(batch: Iterable[Mapping[str, Any]]) -> list[New]:
    """The instances of a batch.

    Raises:
        ValueError: One is not {"id": …}, perhaps with "params" and "labels"; has its number.
        InvalidInstanceIdError: An id breaks the rules of every server.
    """
    found = []
    for number, each in enumerate(batch):
        given: object = each
        known = isinstance(given, Mapping) and given.keys() <= {"id", "params", "labels"}
        if not known or "id" not in each:
            raise ValueError(
                'expected each of a batch to be {"id": …}, perhaps with "params" and "labels", '
                f"found {given!r:.200} as number {number}"
            )
        instance_id = checked_instance_id(each["id"])
        if name_problem("an instance id", instance_id, INSTANCE_ID_TOP):
            # A setting of the server may allow longer ones than usual.
            fault = name_problem("an instance id", instance_id, INSTANCE_ID_MAX)
            raise refused(INVALID_INSTANCE_ID, f"{fault}, as number {number} of the batch")
        found.append(New(instance_id, each.get("params"), each.get("labels") or {}))
    return found
