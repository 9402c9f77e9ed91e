"""Batches of instances to create, as programs and tests write them."""

from collections.abc import Iterable, Mapping
from typing import Any


def batch_of(batch: Iterable[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """The id and the params of each.

    Errors: ValueError for one that is not {"id": …} or {"id": …, "params": …}, with its number.
    """
    found = []
    for number, each in enumerate(batch):
        given: object = each
        if not isinstance(given, Mapping) or "id" not in given or given.keys() - {"id", "params"}:
            raise ValueError(
                'expected each of a batch to be {"id": …} or {"id": …, "params": …}, '
                f"found {given!r:.200} as number {number}"
            )
        found.append((each["id"], each.get("params")))
    return found
