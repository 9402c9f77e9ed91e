"""Dead letters: records that could not be processed, their bytes unchanged, the reason in headers.

The key of a dead letter is unique, so that it can be removed: position of the record, and reason.
The record's own key is in a header. Header names are Kafka Connect's, so that existing viewers show
them, and our own under `headwater.`. All values are text.
"""

import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from headwater.monitoring.catalog import DEAD_LETTERS as DEAD_LETTERS_MADE
from headwater.schemas.topics import DEAD_LETTERS
from headwater.streams.kafka.records import Incoming, Outgoing, text_of

REASON: Final = "headwater.reason"
EVENT_ID: Final = "headwater.event_id"
REQUEST_ID: Final = "headwater.request_id"
KEY: Final = "headwater.key"
DEAD_AT: Final = "headwater.dead_at_ms"
ORIGINAL_TIMESTAMP: Final = "headwater.original_timestamp_ms"
#: Pipeline workers process such a record where they would drop a duplicate or an expired wait.
REPLAY_OF: Final = "headwater.replay_of"
NO_EFFECTS: Final = "headwater.no_effects"
IF_WAITING: Final = "headwater.if_waiting"
RULE: Final = "headwater.rule"
REPLAYED: Final = "headwater.replayed"
REPLAYED_AT: Final = "headwater.replayed_at_ms"
EXPIRED: Final = "headwater.expired"
RESTATED: Final = "headwater.restated"

CONNECT_PREFIX: Final = "__connect.errors."

#: Meaning of headers, by name.
MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        CONNECT_PREFIX + "topic": "Where the record was read.",
        CONNECT_PREFIX + "partition": "Where the record was read.",
        CONNECT_PREFIX + "offset": "Where the record was read.",
        CONNECT_PREFIX + "connector.name": "Always headwater.",
        CONNECT_PREFIX + "task.id": "The partition of the failed stage.",
        CONNECT_PREFIX + "stage": "The stage that failed.",
        CONNECT_PREFIX + "class.name": "The stage, as viewers of Connect expect it.",
        CONNECT_PREFIX + "exception.class.name": "The exception, or the reason without one.",
        CONNECT_PREFIX + "exception.message": "What was expected, what was there, and where.",
        CONNECT_PREFIX + "exception.stacktrace": "The end of the traceback, if there is one.",
        REASON: "A stable code of the problem.",
        EVENT_ID: "The delivery, if it is known.",
        REQUEST_ID: "The request that brought it, if it is known.",
        KEY: "The key of the original record; missing if it had none.",
        DEAD_AT: "When it became a dead letter, in Unix milliseconds.",
        ORIGINAL_TIMESTAMP: "When the record was appended, in Unix milliseconds.",
        REPLAY_OF: "On a record that is put back into its topic: the position of the dead letter "
        "or of the delivery, or the id of the replay.",
        NO_EFFECTS: "On a replayed delivery whose effects on workflows have happened already, and "
        "must not happen again.",
        IF_WAITING: "On a delivery that a drain has put back: to be processed only if it is "
        "waiting.",
        RULE: "On a dead letter of an effect of a delivery, and on its replay: the only rule to "
        "apply again.",
        REPLAYED: "On a record of the topic dead-letters that marks another one as replayed.",
        REPLAYED_AT: "With it: when, in Unix milliseconds.",
        EXPIRED: "On a record of the topic dead-letters that marks another one as expired.",
        RESTATED: "On a delivery in webhooks that a later attempt repeated: the offset of that, "
        "which states another time. This record has the time of the first, for compaction to keep.",
    }
)
_OWN: Final = (
    REASON,
    EVENT_ID,
    REQUEST_ID,
    KEY,
    DEAD_AT,
    ORIGINAL_TIMESTAMP,
    REPLAY_OF,
    NO_EFFECTS,
    IF_WAITING,
)

#: A header is for people: enough for a message with a path, and for the frames that matter. Details
#: without an error are the pipeline's own, and name every rejected record of a delivery.
_MESSAGE_CHARS: Final = 2_000
_DETAILS_CHARS: Final = 64_000
_STACK_CHARS: Final = 6_000


class ProcessingFailure(NamedTuple):
    """Why a stage could not process a record.

    Attributes:
        stage: The stage that failed.
        reason: A stable code.
        detail: What was expected, what was there, and where.
        error: The exception, if there was one.
        rule: The rule of the failed effect, "" for none. It replaces a rule in the headers of the
            record; None keeps that.
    """

    stage: str
    reason: str
    detail: str
    error: BaseException | None = None
    rule: str | None = None


def dead_letter(
    record: Incoming,
    failure: ProcessingFailure,
    *,
    now_ms: int,
    event_id: str = "",
    request_id: str = "",
) -> Outgoing:
    """Return a dead letter of a record.

    Args:
        record: The record.
        failure: Why it could not be processed.
        now_ms: The time, in Unix milliseconds.
        event_id: Id of the delivery, if known.
        request_id: Id of the request that brought it, if known.
    """
    stage, reason, detail, error, rule = failure
    DEAD_LETTERS_MADE.add((stage, reason))
    kind = type(error) if error is not None else None
    stack = "".join(traceback.format_exception(error))[-_STACK_CHARS:] if error else ""
    fields = {
        CONNECT_PREFIX + "topic": record.topic,
        CONNECT_PREFIX + "partition": str(record.partition),
        CONNECT_PREFIX + "offset": str(record.offset),
        CONNECT_PREFIX + "connector.name": "headwater",
        CONNECT_PREFIX + "task.id": str(record.partition),
        CONNECT_PREFIX + "stage": stage,
        CONNECT_PREFIX + "class.name": f"streams.{stage}",
        CONNECT_PREFIX + "exception.class.name": (
            f"{kind.__module__}.{kind.__qualname__}" if kind else reason
        ),
        CONNECT_PREFIX + "exception.message": detail[: _MESSAGE_CHARS if error else _DETAILS_CHARS],
        CONNECT_PREFIX + "exception.stacktrace": stack,
        REASON: reason,
        DEAD_AT: str(now_ms),
        ORIGINAL_TIMESTAMP: str(record.timestamp),
        EVENT_ID: event_id,
        REQUEST_ID: request_id,
    }
    added = [(name, value.encode(errors="replace")) for name, value in fields.items()]
    if record.key is not None:
        added.append((KEY, record.key))
    headers = original(record)
    if rule is not None:
        headers = [header for header in headers if header[0] != RULE]
        added += [(RULE, rule.encode(errors="replace"))] if rule else []
    # More than one of several rules may fail.
    identity = (record.topic, record.partition, record.offset, reason, rule or "")
    key = msgspec.json.encode(identity)
    return Outgoing(DEAD_LETTERS, record.partition, key, record.value, [*headers, *added])


def key_of(letter: Incoming) -> bytes | None:
    """Return the key of the original record of a dead letter."""
    return next((value for name, value in reversed(letter.headers) if name == KEY), None)


def original(record: Incoming) -> list[tuple[str, bytes]]:
    """Return a record's own headers, without those that a dead letter adds."""
    return [
        (name, value)
        for name, value in record.headers
        if not name.startswith(CONNECT_PREFIX) and name not in _OWN
    ]


def text_header(record: Incoming, name: str) -> str | None:
    """Return the last value of a header as text; None if it is missing."""
    for key, value in reversed(record.headers):
        if key == name:
            return text_of(value)
    return None
