"""What a run sends to others: it is queued in the same record as the reason for it."""

from collections.abc import Sequence

import msgspec

from headwater.processors.runs.state import Run
from headwater.schemas.history import (
    Post,
    PostsQueued,
    RunEvent,
    Sender,
    SendEvent,
    StartRun,
)


def queue(run: Run, posts: Sequence[Post]) -> list[RunEvent]:
    """Puts posts into the outbox; they get their numbers here, and what may be refused its sender.

    Shape:  (run, posts without numbers) -> one event, or none for no posts.
    """
    if not posts:
        return []
    numbered = (_numbered(run, post, run.posted + place) for place, post in enumerate(posts))
    return [PostsQueued(tuple(numbered))]


def _numbered(run: Run, post: Post, number: int) -> Post:
    command = post.command
    if isinstance(command, SendEvent):
        # The mailbox of the receiver tells by this id what it has received before.
        event_id = f"{run.workflow}/{run.instance_id}#{number}"
        sender = Sender(run.workflow, run.instance_id, run.run_number, number)
        command = SendEvent(event_id, command.type, command.payload, sender)
    elif isinstance(command, StartRun) and command.parent is None:
        sender = Sender(run.workflow, run.instance_id, run.run_number, number)
        command = msgspec.structs.replace(command, sender=sender)
    return Post(number, post.workflow, post.instance_id, command, post.topic, post.key, post.value)


def in_order(events: list[RunEvent], order: int) -> list[RunEvent]:
    """Gives the records among posts their place among all that their partition publishes.

    Shape:  (events, the place) -> events; those that are decided together may share a place.
    """
    if not any(type(event) is PostsQueued for event in events):
        return events
    return [_placed(event, order) if isinstance(event, PostsQueued) else event for event in events]


def _placed(event: PostsQueued, order: int) -> PostsQueued:
    return PostsQueued(
        tuple(
            post if post.topic is None else msgspec.structs.replace(post, order=order)
            for post in event.posts
        )
    )
