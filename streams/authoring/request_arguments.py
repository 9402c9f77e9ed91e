"""Check arguments of requests that create instances, one or a batch, or send events.

The server validates names against its own limits. Values that cannot be sent at all are rejected
here, with the error that the server would return.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headwater.processors.runs.limits import (
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    INSTANCE_ID_TOP,
    label_types_problem,
    labels_of,
    labels_problem,
    name_problem,
)
from headwater.schemas.failures import (
    INVALID_EVENT_TYPE,
    INVALID_INSTANCE_ID,
    INVALID_LABELS,
    refused,
)
from headwater.schemas.history import Label
from headwater.streams.authoring.values import utf8_safe


def checked_instance_id(instance_id: object) -> str:
    """Return an instance id.

    Raises:
        InvalidInstanceIdError: The id is not text, or cannot be encoded as UTF-8.
    """
    if not isinstance(instance_id, str) or utf8_safe(instance_id) != instance_id:
        raise refused(
            INVALID_INSTANCE_ID, name_problem("an instance id", instance_id, INSTANCE_ID_MAX) or ""
        )
    return instance_id


def checked_event_type(event_type: object) -> str:
    """Return the type of an event.

    Raises:
        InvalidEventTypeError: The type is not text, or cannot be encoded as UTF-8.
    """
    if not isinstance(event_type, str) or utf8_safe(event_type) != event_type:
        raise refused(
            INVALID_EVENT_TYPE, name_problem("an event type", event_type, EVENT_TYPE_MAX) or ""
        )
    return event_type


def checked_labels(labels: object) -> tuple[Label, ...]:
    """Return the labels of an instance, ordered by name.

    Raises:
        InvalidLabelsError: The labels are not a mapping of text to text, or break the rules.
    """
    untyped: Any = labels
    problem = label_types_problem(untyped) or labels_problem(untyped)
    if problem:
        raise refused(INVALID_LABELS, problem)
    return labels_of(untyped)


# -- batches


class NewInstance(NamedTuple):
    """An instance to create."""

    id: str
    params: Any
    #: Not validated yet.
    labels: Any


def parse_batch(batch: Iterable[Mapping[str, Any]]) -> list[NewInstance]:
    """Parse a batch of instances; of several with the same id, only the first is returned.

    Raises:
        ValueError: An item is not a mapping with "id" and optionally "params" and "labels". The
            message has its index.
        InvalidInstanceIdError: An id breaks the rules of every server.
    """
    instances: dict[str, NewInstance] = {}
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
        labels = item.get("labels") or {}
        instances.setdefault(instance_id, NewInstance(instance_id, item.get("params"), labels))
    return list(instances.values())
