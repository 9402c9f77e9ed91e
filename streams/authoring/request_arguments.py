"""Check arguments of requests to create instances and send events, for the client and for tests.

The server validates names against its own limits. Values that cannot be sent at all are rejected
here, with the error that the server would return.
"""

from typing import Any

from headwater.processors.runs.labels import label_types_problem, labels_of, labels_problem
from headwater.processors.runs.limits import EVENT_TYPE_MAX, INSTANCE_ID_MAX, name_problem
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
