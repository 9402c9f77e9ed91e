"""Histories of runs as files: JSON lines that people read, and tests replay.

The first line describes the run, every other line is a record. Events are objects with the names of
their fields; fields that have their defaults are omitted. Values of authors, which records hold as
JSON text, are part of the JSON. A text that JSON parsers would not write in the same way is kept
as it is, in an object with the one member `$json`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec import inspect, structs

from headwater.schemas.history import (
    Artifact,
    AskSlot,
    BranchChanged,
    BranchOutputSet,
    CompleteJob,
    ContextChange,
    EntryCompleted,
    EntryOpened,
    EventReceived,
    Failure,
    FinishChild,
    GraphMigrated,
    GraphStarted,
    HistoryAppended,
    LogEvent,
    LogWritten,
    LoopAdvanced,
    MigrateRun,
    OutcomeHeld,
    Post,
    RunCompleted,
    RunErrored,
    RunMoved,
    RunStarted,
    RunTerminated,
    SendEvent,
    SetBranchOutput,
    SlotAsked,
    SlotQueued,
    StartRun,
    StepCompleted,
    TaskDispatch,
    TokenCompleted,
    TokenFailed,
    TokensCreated,
)
from headwater.schemas.statuses import RunStatus

#: Fields that hold JSON text of authors.
PAYLOADS: Final[frozenset[tuple[type, str]]] = frozenset(
    {
        (AskSlot, "key"),
        (BranchChanged, "output"),
        (BranchOutputSet, "output"),
        (CompleteJob, "output"),
        (ContextChange, "value"),
        (EntryCompleted, "result"),
        (EntryOpened, "state"),
        (EventReceived, "payload"),
        (Failure, "detail"),
        (FinishChild, "output"),
        (GraphMigrated, "document"),
        (GraphStarted, "document"),
        (LogWritten, "data"),
        (LoopAdvanced, "state"),
        (MigrateRun, "document"),
        (OutcomeHeld, "result"),
        (Post, "value"),
        (RunCompleted, "output"),
        (RunStarted, "params"),
        (SendEvent, "payload"),
        (SendEvent, "start"),
        (SetBranchOutput, "output"),
        (SlotAsked, "key"),
        (SlotQueued, "key"),
        (StartRun, "params"),
        (StepCompleted, "result"),
        (TaskDispatch, "input"),
        (TokenCompleted, "result"),
        (TokenFailed, "result"),
        (TokensCreated, "items"),
    }
)
#: JSON text that describes code rather than data.
_DEFINITIONS: Final = frozenset(
    {(GraphMigrated, "document"), (GraphStarted, "document"), (MigrateRun, "document")}
)
#: Other text of authors.
_TEXTS: Final = frozenset({(Failure, "message"), (LogWritten, "message")})
_FORMAT: Final = 1
_RAW: Final = "$json"
_TEXT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class HistoryFileInvalid(ValueError):
    """A file is not the history of a run."""


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one run.

    Attributes:
        deployment: What the run is on; None if it follows the newest code.
        redacted: Number of values that were replaced.
        moves: Whether the run would continue on the code that is checked.
        records: Records of its instance that count, from the first that the run depends on.
    """

    workflow: str
    instance_id: str
    run_number: int
    status: RunStatus
    deployment: str | None = None
    redacted: int = 0
    moves: bool = False
    records: tuple[HistoryAppended, ...] = ()

    @property
    def kind(self) -> str:
        """Engine of the run; "" if its start is missing."""
        for record in self.records:
            for event in record.events:
                if isinstance(event, RunStarted) and record.run_number == self.run_number:
                    return event.kind
        return ""


def history_of(
    records: Iterable[HistoryAppended], number: int, status: RunStatus = RunStatus.WAITING
) -> RunHistory:
    """Return the history of a run from the records of its instance.

    Args:
        records: Records of the instance that count, from the first that the run depends on.
        number: Number of the run.
        status: Status of the run, if it has not ended.

    Raises:
        HistoryFileInvalid: The records do not have the run.
    """
    known = tuple(record for record in records if record.run_number <= number)
    deployment: Artifact | None = None
    for event in (event for one in known if one.run_number == number for event in one.events):
        status = _ENDS.get(type(event), status)
        if isinstance(event, RunStarted | RunMoved):
            deployment = event.deployment
    if not known or known[-1].run_number != number:
        raise HistoryFileInvalid(f"expected records of run {number}, found none")
    return RunHistory(
        workflow=known[0].workflow,
        instance_id=known[0].instance_id,
        run_number=number,
        status=status,
        deployment=None if deployment is None else deployment.name,
        records=known,
    )


_ENDS: Final[Mapping[type, RunStatus]] = {
    RunCompleted: RunStatus.COMPLETE,
    RunErrored: RunStatus.ERRORED,
    RunTerminated: RunStatus.TERMINATED,
}


def unchanged(value: Any) -> Any:  # noqa: ANN401, any JSON
    """Return a value as it is."""
    return value


# -- writing


class Rewriter:
    """Rewrites values of authors while records are written.

    Attributes:
        payload: Returns a parsed JSON value instead of one.
        text: Returns a text, such as an error's message, instead of one.
    """

    def __init__(
        self,
        payload: Callable[[Any], Any] = unchanged,
        text: Callable[[str], str] = unchanged,
    ) -> None:
        self.payload = payload
        self.text = text

    def record(self, record: HistoryAppended) -> HistoryAppended:
        """Return a record with other values of authors."""
        return _record_of(document_of(record, self))

    def event(self, event: LogEvent) -> LogEvent:
        """Return an event with other values of authors."""
        built: LogEvent = _built(document_of(event, self), _EVENT)
        return built


_UNCHANGED: Final = Rewriter()


def document_of(value: Any, rewriter: Rewriter = _UNCHANGED) -> Any:  # noqa: ANN401, any part
    """Return a record, or a part of one, as JSON."""
    match value:
        case msgspec.Struct():
            return _fields_of(value, rewriter)
        case tuple() | list():
            return [document_of(item, rewriter) for item in value]
        case Enum():
            return value.value
        case _:
            return value


def _fields_of(value: msgspec.Struct, rewriter: Rewriter) -> dict[str, Any]:
    kind = type(value)
    tag = kind.__struct_config__.tag
    document: dict[str, Any] = {} if tag is None else {"_": tag}
    for field in structs.fields(kind):
        content = getattr(value, field.name)
        if content == field.default:
            continue
        where = (kind, field.name)
        if where in PAYLOADS:
            rewrite = unchanged if where in _DEFINITIONS else rewriter.payload
            content = None if content is None else _embedded(content, rewrite)
        elif where in _TEXTS:
            content = rewriter.text(content)
        else:
            content = document_of(content, rewriter)
        document[field.name] = content
    return document


def _embedded(text: str, rewrite: Callable[[Any], Any]) -> Any:  # noqa: ANN401, any JSON
    """Return JSON text as a value that `_text_of` returns the same text for."""
    try:
        value = json.loads(text)
    except ValueError:
        return {_RAW: text}
    rewritten = rewrite(value)
    is_same = rewritten is value or rewritten == value
    return {_RAW: text} if is_same and _TEXT(value) != text else rewritten


def lines_of(history: RunHistory) -> Iterator[str]:
    """Yield the lines of a history's file, without line breaks."""
    header = {
        "format": _FORMAT,
        "workflow": history.workflow,
        "instanceId": history.instance_id,
        "runNumber": history.run_number,
        "status": history.status.value,
        "deployment": history.deployment,
        "redacted": history.redacted,
    }
    yield _TEXT(header)
    for record in history.records:
        yield _TEXT(document_of(record))


# -- reading


def read_history(lines: Iterable[str]) -> RunHistory:
    """Return the history in the lines of a file.

    Raises:
        HistoryFileInvalid: It is not a history, or one of a newer format.
    """
    documents = [line for line in lines if line.strip()]
    try:
        header = json.loads(documents[0])
        _check_format(header["format"])
        return RunHistory(
            workflow=header["workflow"],
            instance_id=header["instanceId"],
            run_number=header["runNumber"],
            status=RunStatus(header["status"]),
            deployment=header.get("deployment"),
            redacted=header.get("redacted", 0),
            records=tuple(_record_of(json.loads(line)) for line in documents[1:]),
        )
    except HistoryFileInvalid:
        raise
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise HistoryFileInvalid(
            f"expected the history of a run, as `headwater histories export` writes it, found "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_format(found: object) -> None:
    if found != _FORMAT:
        raise HistoryFileInvalid(
            f"expected a history of format {_FORMAT}, found {found!r:.20}; export it again with "
            "this release, or use a newer one"
        )


_RECORD: Final = inspect.type_info(HistoryAppended)
_EVENT: Final = inspect.type_info(LogEvent)
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(HistoryAppended)


def _record_of(document: Any) -> HistoryAppended:  # noqa: ANN401, any JSON
    """Return the record of a document.

    Raises:
        ValueError: It is not a record. Also KeyError and TypeError.
    """
    # Structs do not check their fields when they are created.
    return _DECODER.decode(_ENCODER.encode(_built(document, _RECORD)))


def _built(value: Any, kind: inspect.Type) -> Any:  # noqa: ANN401, any part
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return cls(
                **{
                    field.name: _text_of(value[field.name])
                    if (cls, field.name) in PAYLOADS
                    else _built(value[field.name], field.type)
                    for field in fields
                    if field.name in value
                }
            )
        case inspect.UnionType(types=types):
            return _built(value, _member(value, types))
        case inspect.VarTupleType(item_type=item):
            return tuple(_built(part, item) for part in value)
        case inspect.EnumType(cls=cls):
            return cls(value)
        case inspect.Metadata(type=inner):
            return _built(value, inner)
        case _:
            return value


def _member(value: Any, types: Iterable[inspect.Type]) -> inspect.Type:  # noqa: ANN401, any part
    """Return the type of a union that a value has."""
    if value is None:
        return inspect.NoneType()
    others = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
    tag = value.get("_") if isinstance(value, dict) else None
    for kind in others:
        if not isinstance(kind, inspect.StructType) or kind.tag == tag:
            return kind
    raise HistoryFileInvalid(f"expected an event of this release, found {tag!r:.60}")


def _text_of(value: Any) -> str | None:  # noqa: ANN401, any JSON
    """Return the JSON text of an embedded value; null stands for no text."""
    if isinstance(value, dict) and value.keys() == {_RAW}:
        return str(value[_RAW])
    return _TEXT(value)
