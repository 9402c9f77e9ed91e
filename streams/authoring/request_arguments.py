"""Arguments of those who create instances and send events, refused alike by a client and a test.

A server decides whether a name keeps its rules. What cannot be sent to one is refused here, with
the error that the server would have for it.
"""

from collections.abc import Mapping

from headwater.processors.runs.labels import labels_fault, labels_of
from headwater.processors.runs.limits import EVENT_TYPE_TOP, INSTANCE_ID_TOP, name_fault
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
            INVALID_INSTANCE_ID, name_fault("an instance id", given, INSTANCE_ID_TOP) or ""
        )
    return given


def checked_event_type(given: object) -> str:
    """Return the type of an event.

    Raises:
        InvalidEventTypeError: It is no text that UTF-8 can hold.
    """
    if not isinstance(given, str) or sound(given) != given:
        raise refused(INVALID_EVENT_TYPE, name_fault("an event type", given, EVENT_TYPE_TOP) or "")
    return given


def checked_labels(given: object) -> tuple[Label, ...]:
    """Return the labels of an instance, by name.

    Raises:
        InvalidLabelsError: They are no texts by name, or break the rules.
    """
    if not isinstance(given, Mapping):
        raise refused(INVALID_LABELS, f"expected labels as a dict, found {given!r:.120}")
    named = [name for name in given if not isinstance(name, str)]
    fault = f"expected names of labels as text, found {named[0]!r:.120}" if named else None
    fault = fault or labels_fault(given)
    if fault:
        raise refused(INVALID_LABELS, fault)
    return labels_of(given)
