"""What a run sends: the place of records among all that their partition publishes."""

from processors.replay.outbox import in_order
from schemas.history import Post, PostsQueued, RunResumed, StartRun


def test_records_get_a_place_and_commands_none():
    command = Post(3, workflow="w", instance_id="i", command=StartRun("1"))
    record = Post(4, topic="t", value="1")
    events = [RunResumed(), PostsQueued((command, record))]
    placed = Post(4, topic="t", value="1", order=17)
    assert in_order(events, 17) == [RunResumed(), PostsQueued((command, placed))]


def test_events_without_posts_stay_the_same_list():
    events = [RunResumed()]
    assert in_order(events, 17) is events
