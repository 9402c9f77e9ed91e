"""Arguments of those who create instances and send events, refused alike by a client and a test.

A server decides whether a name keeps its rules. What cannot be sent to one is refused here, with
the error that the server would have for it.
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
from headwater.streams.authoring.values import sound


def checked_instance_id(given: object) -> str:
    """Return the id of an instance.

    Raises:
        InvalidInstanceIdError: It is no text that UTF-8 can hold.
    """
    if not isinstance(given, str) or sound(given) != given:
        raise refused(
            INVALID_INSTANCE_ID, name_problem("an instance id", given, INSTANCE_ID_MAX) or ""
        )
    return given


def checked_event_type(given: object) -> str:
    """Return the type of an event.

    Raises:
        InvalidEventTypeError: It is no text that UTF-8 can hold.
    """
    if not isinstance(given, str) or sound(given) != given:
        raise refused(
            INVALID_EVENT_TYPE, name_problem("an event type", given, EVENT_TYPE_MAX) or ""
        )
    return given


def checked_labels(given: object) -> tuple[Label, ...]:
    """Return the labels of an instance, by name.

    Raises:
        InvalidLabelsError: They are no texts by name, or break the rules.
    """
    labels: Any = given
    fault = label_types_problem(labels) or labels_problem(labels)
    if fault:
        raise refused(INVALID_LABELS, fault)
    return labels_of(labels)
