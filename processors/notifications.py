"""Notifications: events of the system that are sent to endpoints, and start workflows.

A notification is derived from one record of a log. So every reader of the log derives the same one,
with the same id. A new type is a member of `NotificationType` with its scope, a function that
derives it, and an example in docs/notifications.md.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

import msgspec

from headwater.processors.api_keys import Scope
from headwater.processors.input_texts import rfc3339
from headwater.schemas.auditor import AuditorFinding
from headwater.schemas.history import (
    Failure,
    HistoryAppended,
    Label,
    RunCompleted,
    RunErrored,
    RunTerminated,
    StartRun,
)
from headwater.schemas.tables import Row, Table, begins_with_user
from headwater.schemas.topics import AUDITOR, DEAD_LETTERS, WORKFLOW_HISTORY

#: The built-in workflow that sends notifications: an instance per notification and endpoint.
NOTIFY: Final = "headwater-notification"
#: The built-in workflow that starts workflows because of a notification, by rules.
REACT: Final = "headwater-reaction"
#: Labels of its instances: the endpoint, and the type of the notification.
ENDPOINT_LABEL: Final = "endpoint"
TYPE_LABEL: Final = "type"
#: Source of rules about notifications.
SOURCE: Final = "headwater"

#: Bytes of the data of a notification: receivers of webhooks expect small bodies, and many refuse
#: more than 256 KiB. Rows and errors have some KiB.
DATA_BYTES_MAX: Final = 128 * 1024
_ID_CHARS: Final = 32
_ID_PREFIX: Final = "msg_"
#: Characters of the message of an error or of a dead letter.
_MESSAGE_CHARS: Final = 2_000


class NotificationType(StrEnum):
    """What a notification is about."""

    INSTANCE_COMPLETED = "instance_completed"
    INSTANCE_ERRORED = "instance_errored"
    INSTANCE_TERMINATED = "instance_terminated"
    DEAD_LETTER = "dead_letter"
    ROW_CHANGED = "row_changed"
    ROW_DELETED = "row_deleted"
    INSTANCE_STUCK = "instance_stuck"
    LAG = "lag"
    AUDITOR_FINDING = "auditor_finding"
    TEST = "test"


#: Types about the end of an instance.
INSTANCE_TYPES: Final = frozenset(
    {
        NotificationType.INSTANCE_COMPLETED,
        NotificationType.INSTANCE_ERRORED,
        NotificationType.INSTANCE_TERMINATED,
    }
)
ROW_TYPES: Final = frozenset({NotificationType.ROW_CHANGED, NotificationType.ROW_DELETED})
#: Types that no record leads to: a worker looks for them every minute.
WATCHED_TYPES: Final = frozenset({NotificationType.INSTANCE_STUCK, NotificationType.LAG})
#: Scope that a key needs to have notifications of a type sent to an endpoint.
SCOPE_OF_TYPE: Final[Mapping[NotificationType, Scope]] = {
    **dict.fromkeys(INSTANCE_TYPES, Scope.INSTANCES_READ),
    NotificationType.DEAD_LETTER: Scope.DELIVERIES_READ,
    **dict.fromkeys(ROW_TYPES, Scope.ROWS_READ),
    NotificationType.INSTANCE_STUCK: Scope.INSTANCES_READ,
    NotificationType.LAG: Scope.SYSTEM_READ,
    NotificationType.AUDITOR_FINDING: Scope.SYSTEM_READ,
    NotificationType.TEST: Scope.SYSTEM_READ,
}
#: Types that rules can react to.
RULE_TYPES: Final = frozenset({NotificationType.INSTANCE_ERRORED, NotificationType.DEAD_LETTER})


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of the system.

    Attributes:
        id: The same for all endpoints, and for all copies.
        at_ms: When it happened, Unix milliseconds.
        workflow: The workflow that it is about, if any; filters compare it, and the next two.
        table: The table.
        reason: The reason of a dead letter.
        user_id: The user that it is about, if any.
        position: Partition and offset of the record, if the data is not complete without Postgres.
        data: What is sent; JSON of an object.
    """

    id: str
    type: str
    at_ms: int
    workflow: str = ""
    table: str = ""
    reason: str = ""
    user_id: str = ""
    position: tuple[int, int] | None = None
    data: dict[str, Any]

    def body(self, more: Mapping[str, Any] | None = None) -> bytes:
        """Return the body of its requests: type, timestamp and data, as Standard Webhooks has them.

        Args:
            more: Further data.
        """
        timestamp = rfc3339(self.at_ms)
        data = {**self.data, **(more or {})}
        return msgspec.json.encode({"type": self.type, "timestamp": timestamp, "data": data})


class ToEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Params of NOTIFY.

    Attributes:
        user_id: That of the notification: a wipe deletes the instances that name its user here.
        retries_ms: Pauses between the attempts, in milliseconds.
    """

    endpoint: str
    notification: Notification
    retries_ms: tuple[int, ...]
    user_id: str


class Reaction(msgspec.Struct, frozen=True, kw_only=True):
    """Params of REACT."""

    notification: Notification
    user_id: str = ""


def notification_id(type_: str, topic: str, partition: int, offset: int) -> str:
    """Return the id of the notification that a record of a log leads to."""
    return _id_of(f"{type_}/{topic}/{partition}@{offset}")


def _id_of(origin: str) -> str:
    return _ID_PREFIX + sha256(origin.encode()).hexdigest()[:_ID_CHARS]


def instance_id(notification: Notification, endpoint: str) -> str:
    """Return the id of the instance that sends a notification to an endpoint."""
    return f"{endpoint}-{notification.id.removeprefix(_ID_PREFIX)}"


def message_id(instance: str) -> str:
    """Return the id of the notification that an instance sends."""
    return _ID_PREFIX + instance.rpartition("-")[2]


def sending(notification: Notification, endpoint: str, retries_ms: tuple[int, ...]) -> StartRun:
    """Return the command that has a notification sent to an endpoint."""
    params = ToEndpoint(
        endpoint=endpoint,
        notification=notification,
        retries_ms=retries_ms,
        user_id=notification.user_id,
    )
    labels = (Label(ENDPOINT_LABEL, endpoint), Label(TYPE_LABEL, notification.type))
    return StartRun(msgspec.json.encode(params).decode(), labels=labels)


def reacting(notification: Notification) -> StartRun:
    """Return the command that has the rules about a notification carried out."""
    params = Reaction(notification=notification, user_id=notification.user_id)
    return StartRun(msgspec.json.encode(params).decode())


# -- ends of instances


def of_history(record: HistoryAppended, partition: int, offset: int) -> Iterator[Notification]:
    """Yield a notification if a record ends a run.

    The instances that send notifications lead to none: each would lead to the next.
    """
    if not record.workflow or record.workflow in (NOTIFY, REACT):
        return
    for event in record.events:
        failure: Failure | None = None
        match event:
            case RunCompleted():
                type_, status = NotificationType.INSTANCE_COMPLETED, "complete"
            case RunErrored():
                type_, status = NotificationType.INSTANCE_ERRORED, "errored"
                failure = event.failure
            case RunTerminated():
                type_, status = NotificationType.INSTANCE_TERMINATED, "terminated"
                failure = event.failure
            case _:
                continue
        error = failure and {"name": failure.name, "message": failure.message[:_MESSAGE_CHARS]}
        yield Notification(
            id=notification_id(type_, WORKFLOW_HISTORY, partition, offset),
            type=type_,
            at_ms=record.at_ms,
            workflow=record.workflow,
            position=(partition, offset),
            data={
                "workflow": record.workflow,
                "id": record.instance_id,
                "run": record.run_number,
                "status": status,
                "error": error,
            },
        )


# -- dead letters


def of_dead_letter(
    fields: Mapping[str, str], partition: int, offset: int, appended_ms: int
) -> Notification:
    """Return the notification of a dead letter.

    Args:
        fields: `topic`, `partition`, `offset`, `stage`, `reason`, `detail`, `event_id`,
            `request_id`; texts, some may be empty.
        partition: Partition of the dead letter.
        offset: Offset of the dead letter.
        appended_ms: When it was appended, Unix milliseconds.
    """
    type_ = NotificationType.DEAD_LETTER
    return Notification(
        id=notification_id(type_, DEAD_LETTERS, partition, offset),
        type=type_,
        at_ms=appended_ms,
        reason=fields["reason"],
        data={
            "position": f"{partition}@{offset}",
            "stage": fields["stage"],
            "reason": fields["reason"],
            "detail": fields["detail"][:_MESSAGE_CHARS],
            "record": f"{fields['topic']}/{fields['partition']}@{fields['offset']}",
            "event_id": fields["event_id"] or None,
            "request_id": fields["request_id"] or None,
        },
    )


# -- rows


def of_row(table: Table, row: Row, partition: int, offset: int, appended_ms: int) -> Notification:
    """Return the notification of a changed or deleted row."""
    type_ = NotificationType.ROW_DELETED if row.is_hidden else NotificationType.ROW_CHANGED
    key = dict(zip(table.key_names, row.key, strict=True))
    values = dict(zip(table.column_names, row.values, strict=True))
    user = row.key[0] if begins_with_user(table) else (key | values).get("user_id")
    data: dict[str, Any] = {"table": table.name, "key": key, "version": f"{partition}@{offset}"}
    if not row.is_hidden:
        data["row"] = _bounded(values)
    return Notification(
        id=notification_id(type_, table.topic, partition, offset),
        type=type_,
        at_ms=appended_ms,
        table=table.name,
        user_id=str(user or ""),
        data=data,
    )


def _bounded(values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the columns of a row; None if they are too large to be sent."""
    return values if len(msgspec.json.encode(values)) <= DATA_BYTES_MAX else None


# -- findings of the auditor


def of_finding(finding: AuditorFinding, partition: int, offset: int) -> Notification | None:
    """Return the notification of a finding that begins or ends; None if only its detail changed."""
    if not finding.ended_ms and finding.first_seen_ms != finding.last_seen_ms:
        return None
    type_ = NotificationType.AUDITOR_FINDING
    return Notification(
        id=notification_id(type_, AUDITOR, partition, offset),
        type=type_,
        at_ms=finding.ended_ms or finding.first_seen_ms,
        data={
            "law": finding.law,
            "subject": finding.subject,
            "detail": finding.detail[:_MESSAGE_CHARS],
            "first_seen": rfc3339(finding.first_seen_ms),
            "ended": rfc3339(finding.ended_ms) if finding.ended_ms else None,
        },
    )


# -- what a worker looks for


def of_stuck(
    workflow: str, instance: str, run_number: int, since_ms: int, now_ms: int
) -> Notification:
    """Return the notification of an instance that should have continued at `since_ms`."""
    type_ = NotificationType.INSTANCE_STUCK
    return Notification(
        id=_id_of(f"{type_}/{workflow}/{instance}/{run_number}/{since_ms}"),
        type=type_,
        at_ms=now_ms,
        workflow=workflow,
        data={"workflow": workflow, "id": instance, "run": run_number, "since": rfc3339(since_ms)},
    )


def of_lag(group: str, topic: str, *, records: int, seconds: int, now_ms: int) -> Notification:
    """Return the notification of a consumer group with records that have waited too long."""
    type_ = NotificationType.LAG
    return Notification(
        id=_id_of(f"{type_}/{group}/{topic}/{now_ms}"),
        type=type_,
        at_ms=now_ms,
        data={"group": group, "topic": topic, "records": records, "seconds": seconds},
    )


# -- tests


def of_test(endpoint: str, test_id: str, now_ms: int) -> Notification:
    """Return a notification with which an operator tests an endpoint."""
    return Notification(
        id=_id_of(f"{NotificationType.TEST}/{test_id}"),
        type=NotificationType.TEST,
        at_ms=now_ms,
        data={"endpoint": endpoint},
    )


# -- delays of attempts

_STEPS: Final = 1_000


def jittered_ms(delay_ms: int, seed: str) -> int:
    """Return a delay that is up to a tenth shorter or longer, always the same for a seed.

    Otherwise all notifications that an endpoint did not accept would be sent again together.
    """
    step = int.from_bytes(sha256(seed.encode()).digest()[:4], "big") % (_STEPS + 1)
    return delay_ms * (9 * _STEPS + 2 * step) // (10 * _STEPS)
