"""What a run sends: the place of records among all that their partition publishes."""

from headwater.processors.runs.outbox import in_order, queue
from headwater.schemas.history import Parent, Post, PostsQueued, RunResumed, Sender, StartRun
from tests.unit.processors.replay.states import a_run


def test_records_get_a_place_and_commands_none():
    command = Post(3, workflow="w", instance_id="i", command=StartRun("1"))
    record = Post(4, topic="t", value="1")
    events = [RunResumed(), PostsQueued((command, record))]
    placed = Post(4, topic="t", value="1", order=17)
    assert in_order(events, 17) == [RunResumed(), PostsQueued((command, placed))]


def test_events_without_posts_stay_the_same_list():
    events = [RunResumed()]
    assert in_order(events, 17) is events


def test_who_starts_an_instance_without_waiting_for_it_is_named_in_the_command():
    mine = Parent("order", "o-1", 0, "bill")
    sender = Sender("order", "o-1", 0, 4)
    posts = [Post(0, "w", "i", StartRun("1")), Post(0, "w", "j", StartRun("2", mine))]
    run = a_run(posted=4)
    trace = run.context.text
    assert queue(run, posts) == [
        PostsQueued(
            (
                Post(4, "w", "i", StartRun("1", sender=sender), trace=trace),
                Post(5, "w", "j", StartRun("2", mine), trace=trace),
            )
        )
    ]
