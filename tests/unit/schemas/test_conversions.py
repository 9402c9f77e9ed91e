"""What an Avro library is given for a struct, and what becomes of what it gives."""

import pytest

from headwater.schemas.conversions import from_plain, to_plain
from headwater.schemas.history import (
    Command,
    CommandSent,
    EntryKind,
    EntryOpened,
    Failure,
    FinishChild,
    HistoryAppended,
    Parent,
    PauseRun,
    Post,
    PostsQueued,
    StepFailed,
)
from headwater.schemas.records import WebhooksClaimed

FAILURE = {"name": "n", "message": "m", "detail": None}


def test_a_struct_with_nothing_within_is_a_dict_as_it_is():
    ids = ["e"]
    plain = to_plain(WebhooksClaimed)(WebhooksClaimed(ids, [1], 2))
    assert plain == {"event_ids": ["e"], "offsets": [1], "admitted_at_ms": 2}
    assert plain["event_ids"] is ids
    assert from_plain(WebhooksClaimed)(plain) == WebhooksClaimed(ids, [1], 2)


def test_a_struct_in_a_union_is_named_and_one_that_stands_alone_is_not():
    failed = StepFailed("k", "n", 1, 2, 3, 4, 5, Failure("n", "m"))
    assert to_plain(StepFailed)(failed)["failure"] == FAILURE
    finished = FinishChild(1, "k", failure=Failure("n", "m"))
    assert to_plain(FinishChild)(finished)["failure"] == ("headwater.Failure", FAILURE)
    assert to_plain(FinishChild)(FinishChild(1, "k"))["failure"] is None


def test_tuples_are_lists_at_any_depth():
    queued = PostsQueued((Post(number=1, command=PauseRun()),))
    (post,) = to_plain(PostsQueued)(queued)["posts"]
    assert post["command"] == ("headwater.PauseRun", {})
    opened = EntryOpened("k", "n", EntryKind.WAIT, 1, event_types=("a", "b"))
    plain = to_plain(EntryOpened)(opened)
    assert plain["event_types"] == ["a", "b"]
    assert from_plain(EntryOpened)(plain) == opened


def test_a_struct_is_not_changed_by_being_written():
    queued = PostsQueued((Post(number=1, command=PauseRun()),))
    assert to_plain(PostsQueued)(queued) == to_plain(PostsQueued)(queued)
    assert isinstance(queued.posts[0].command, PauseRun)


def test_what_was_written_before_its_field_could_be_null_has_no_name_and_is_read():
    fields = {"run_number": 1, "key": "k", "output": None, "failure": dict(FAILURE)}
    assert from_plain(FinishChild)(fields).failure == Failure("n", "m")


@pytest.mark.parametrize("stranger", [Parent("w", "i", 0, "k"), Failure("n", "m"), 7, None])
def test_a_stranger_in_a_union_is_named(stranger: object):
    sent = CommandSent(
        command_id="c", workflow="w", instance_id="i", sent_at_ms=1, reply_to=-1, command=stranger
    )
    names = ", ".join(kind.__name__ for kind in Command.__args__)
    with pytest.raises(
        TypeError, match=f"expected one of {names}, found {type(stranger).__name__}"
    ):
        to_plain(CommandSent)(sent)


def test_a_conversion_is_made_once():
    assert to_plain(HistoryAppended) is to_plain(HistoryAppended)
    assert from_plain(HistoryAppended) is from_plain(HistoryAppended)
