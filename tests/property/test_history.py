"""The facts of workflows survive the codec, and nothing else passes for one."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import UndecodableRecord
from headwater.schemas.history import (
    Command,
    CommandSent,
    EntryOpened,
    HistoryAppended,
    LogEvent,
    PauseRun,
    Post,
    PostsQueued,
    RunPaused,
    SendEvent,
)
from headwater.schemas.records import Record
from headwater.schemas.statuses import EntryKind
from tests.fakes import records
from tests.property.structs import structs

RECORDS = structs(HistoryAppended) | structs(CommandSent)


class Unheard(msgspec.Struct, frozen=True):
    """An event, a command and a record that the catalogue does not know."""

    key: str = ""


def appended(*events: object) -> HistoryAppended:
    return records.appended(*events, sequence=1, epoch=2, cause=3, at_ms=4)


def sent(command: object) -> CommandSent:
    return records.sent(command, sent_at_ms=1)


def assert_survives(record: Record) -> None:
    result = decode(encode(record), type(record))
    assert result == record
    # Equality says nothing of an enumeration, whose members are equal to their values.
    assert repr(result) == repr(record)


@given(record=RECORDS)
@settings(max_examples=100, deadline=None)
def test_a_record_of_any_events_or_command_is_read_as_it_was_written(record: Record):
    assert_survives(record)


@pytest.mark.parametrize("kind", get_args(LogEvent), ids=lambda kind: kind.__name__)
def test_every_event_is_read_as_it_was_written(kind: type[msgspec.Struct]):
    @given(event=structs(kind))
    @settings(max_examples=25, deadline=None)
    def check(event: object) -> None:
        assert_survives(appended(event))
        assert_survives(appended(event, RunPaused(), event))

    check()


@pytest.mark.parametrize("kind", get_args(Command), ids=lambda kind: kind.__name__)
def test_every_command_is_read_as_it_was_written_sent_and_posted(kind: type[msgspec.Struct]):
    @given(command=structs(kind))
    @settings(max_examples=25, deadline=None)
    def check(command: object) -> None:
        assert_survives(sent(command))
        post = Post(number=1, workflow="w", instance_id="i", command=command)
        assert_survives(appended(PostsQueued((post, Post(number=2, topic="t", value="{}")))))

    check()


@given(record=RECORDS, data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_record_that_is_cut_off_or_too_long_is_undecodable(record: Record, data: st.DataObject):
    written = encode(record)
    cut = data.draw(st.integers(0, len(written) - 1))
    for other in (written[:cut], written + b"\x00"):
        with pytest.raises(UndecodableRecord):
            decode(other, type(record))


@given(record=RECORDS, data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_record_with_another_byte_is_a_record_or_undecodable(record: Record, data: st.DataObject):
    written = bytearray(encode(record))
    written[data.draw(st.integers(5, len(written) - 1))] = data.draw(st.integers(0, 255))
    try:
        result = decode(bytes(written), type(record))
    except UndecodableRecord:
        return
    assert type(result) is type(record)


@given(junk=st.binary(max_size=60), record=st.sampled_from([appended(), sent(PauseRun())]))
@settings(max_examples=150, deadline=None)
def test_junk_is_a_record_or_undecodable(junk: bytes, record: Record):
    try:
        result = decode(encode(record)[:5] + junk, type(record))
    except UndecodableRecord:
        return
    assert type(result) is type(record)


@pytest.mark.parametrize(
    "record",
    [
        appended(Unheard()), appended(RunPaused(), Unheard()), appended(None),
        appended("RunPaused"), appended(PauseRun()), sent(RunPaused()), sent(Unheard()),
        sent(None), appended(PostsQueued((Post(number=1, command=Unheard()),))),
    ],
    ids=[
        "an event", "a later event", "none", "a name", "a command as an event",
        "an event as a command", "a command", "no command", "a command in a post",
    ],
)  # fmt: skip
def test_what_the_catalogue_does_not_know_is_not_written(record: Record):
    said = r"that its schema can hold, found one that it cannot: KeyError\(<class "
    with pytest.raises(ValueError, match=said):
        encode(record)


def test_a_kind_of_entry_that_is_not_known_is_neither_written_nor_read():
    with pytest.raises(ValueError, match="that its schema can hold, found one that it cannot"):
        encode(appended(EntryOpened("k", "n", "nap", 1)))
    written = encode(appended(EntryOpened("k", "n", EntryKind.NOW, 1)))
    with pytest.raises(UndecodableRecord, match=r"expected a history_appended, found .*'nap'"):
        decode(written.replace(b"now", b"nap"), HistoryAppended)


def test_a_command_is_no_history():
    with pytest.raises(UndecodableRecord, match="expected a history_appended, found a command_se"):
        decode(encode(sent(SendEvent("e", "t", "{}"))), HistoryAppended)
