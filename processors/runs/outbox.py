"""Messages of a run to others: its outbox, and what it sends when it ends."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.processors.runs.slots import slot_return
from headwater.processors.runs.state import Run
from headwater.schemas.failures import DEPTH_LIMIT
from headwater.schemas.history import (
    CancelRun,
    Child,
    Failure,
    FinishChild,
    Json,
    Parent,
    Post,
    PostsQueued,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunTerminated,
    Sender,
    SendEvent,
    StartRun,
    TerminateRun,
)

_ID_BYTES: Final = 16


def queue(run: Run, posts: Sequence[Post]) -> list[RunEvent]:
    """Put posts into the outbox, numbered, and with their sender if they may be rejected.

    Args:
        run: The sending run.
        posts: Posts without numbers. The id of an instance to be created may be empty: it is then
            derived from the post.

    Returns:
        One event, or none if there are no posts.
    """
    if not posts:
        return []
    numbered = (_numbered(run, post, run.posted + index) for index, post in enumerate(posts))
    return [PostsQueued(tuple(numbered))]


def _numbered(run: Run, post: Post, number: int) -> Post:
    command, instance_id, trace = post.command, post.instance_id, ""
    if command is None or isinstance(command, StartRun | SendEvent):
        trace = run.context.text
    sender = Sender(run.workflow, run.instance_id, run.run_number, number)
    if isinstance(command, SendEvent):
        # The receiver's mailbox recognizes duplicates by this id.
        event_id = f"{run.workflow}/{run.instance_id}#{number}"
        command = msgspec.structs.replace(command, event_id=event_id, sender=sender)
    elif isinstance(command, StartRun) and command.parent is None:
        command = msgspec.structs.replace(command, sender=sender)
        instance_id = instance_id or _id_of_post(run, number)
    record = (post.topic, post.key, post.value)
    return Post(number, post.workflow, instance_id, command, *record, trace=trace)


def _id_of_post(run: Run, number: int) -> str:
    """Return the id of an instance that a post creates without naming one; unique to the post."""
    name = f"{run.workflow}/{run.instance_id}/{run.seed}#{number}"
    return f"run_{blake2b(name.encode(), digest_size=_ID_BYTES).hexdigest()}"


def in_order(events: list[RunEvent], order: int) -> list[RunEvent]:
    """Set the order of the records among posts, relative to all that their partition publishes.

    Args:
        events: Events that may contain queued posts.
        order: The order; events that are decided together may share it.
    """
    for event in events:
        if type(event) is PostsQueued:
            break
    else:
        return events  # Nearly always.
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


def start_child(run: Run, child: Child, params: Json, key: str) -> Post | Failure:
    """Return the post that starts a child, or why no further instance may be nested."""
    depth = run.depth + 1
    most = (run.limits or DEFAULT_LIMITS).max_depth
    if depth >= most:
        return Failure(
            DEPTH_LIMIT,
            f"expected at most {most} instances nested in one another (max_depth), found that "
            f"{run.workflow}/{run.instance_id} is the last of so many and starts another one, of "
            f"{child.workflow}; does a workflow run itself without an end?",
        )
    parent = Parent(run.workflow, run.instance_id, run.run_number, key)
    command = StartRun(params, parent, deployment=run.deployment, depth=depth)
    return Post(0, child.workflow, child.instance_id, command)


# -- the end of a run


def ended_by(
    run: Run, end: RunCompleted | RunErrored | RunTerminated, posts: Sequence[Post] = ()
) -> list[RunEvent]:
    """Return the end of a run, after its posts: to its parent, and the return of its slot."""
    if run.parent is not None:
        posts = [*posts, _finish(run.parent, run, end)]
    if run.slot is not None:
        posts = [*posts, *slot_return(run)]
    return [*queue(run, posts), end]


def posts_to_end(
    run: Run, children: Iterable[tuple[object, Child | None]], reason: str, *, cancelled: bool
) -> list[Post]:
    """Return posts that end children: canceled with their parent, otherwise terminated.

    Args:
        run: The parent.
        children: The child, or None, of every entry or token, with its key.
        reason: Reason of the end.
        cancelled: Whether the parent was canceled.
    """
    command = CancelRun if cancelled else TerminateRun
    address = (run.workflow, run.instance_id, run.run_number)
    return [
        Post(0, child.workflow, child.instance_id, command(reason, Parent(*address, str(key))))
        for key, child in children
        if child is not None
    ]


def _failure(run: Run, end: RunTerminated) -> Failure:
    name, verb = ("Cancelled", "cancelled") if end.cancelled else ("Terminated", "ended")
    reason = f": {end.reason}" if end.reason else ""
    return Failure(name, f"{run.workflow}/{run.instance_id} was {verb}{reason}")


def _finish(parent: Parent, run: Run, end: RunCompleted | RunErrored | RunTerminated) -> Post:
    output, failure = None, None
    match end:
        case RunCompleted():
            output = end.output
        case RunErrored():
            failure = end.failure
        case RunTerminated():
            failure = _failure(run, end)
    finish = FinishChild(parent.run_number, parent.key, output, failure)
    return Post(0, parent.workflow, parent.instance_id, finish)
