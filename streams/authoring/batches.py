"""Batches of instances to create, as programs and tests write them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class New(NamedTuple):
    """An instance to be created."""

    id: str
    params: Any
    labels: Mapping[str, str]


def batch_of(batch: Iterable[Mapping[str, Any]]) -> list[New]:
    """The instances of a batch.

    Errors: ValueError for one that is not {"id": …}, perhaps with "params" and "labels", with its
            number.
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
        found.append(New(each["id"], each.get("params"), each.get("labels") or {}))
    return found
