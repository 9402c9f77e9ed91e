"""Outbox of a run: messages are queued in the same record as the event that causes them."""

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
    """Put posts into the outbox, numbered, and with their sender if they may be rejected.

    Args:
        run: The sending run.
        posts: Posts without numbers.

    Returns:
        One event, or none if there are no posts.
    """
    if not posts:
        return []
    numbered = (_numbered(run, post, run.posted + index) for index, post in enumerate(posts))
    return [PostsQueued(tuple(numbered))]


def _numbered(run: Run, post: Post, number: int) -> Post:
    command = post.command
    if isinstance(command, SendEvent):
        # The receiver's mailbox recognizes duplicates by this id.
        event_id = f"{run.workflow}/{run.instance_id}#{number}"
        sender = Sender(run.workflow, run.instance_id, run.run_number, number)
        command = SendEvent(event_id, command.type, command.payload, sender)
    elif isinstance(command, StartRun) and command.parent is None:
        sender = Sender(run.workflow, run.instance_id, run.run_number, number)
        command = msgspec.structs.replace(command, sender=sender)
    return Post(number, post.workflow, post.instance_id, command, post.topic, post.key, post.value)


def in_order(events: list[RunEvent], order: int) -> list[RunEvent]:
    """Set the order of the records among posts, relative to all that their partition publishes.

    Args:
        events: Events that may contain queued posts.
        order: The order; events that are decided together may share it.
    """
    if not any(type(event) is PostsQueued for event in events):
        return events
    return [
        _with_order(event, order) if isinstance(event, PostsQueued) else event for event in events
    ]


def _with_order(event: PostsQueued, order: int) -> PostsQueued:
    return PostsQueued(
        tuple(
            post if post.topic is None else msgspec.structs.replace(post, order=order)
            for post in event.posts
        )
    )
