"""Concurrency limits, from the point of view of the runs that request a slot.

A run of a limited workflow first requests a slot, waits until it is granted, and returns it when
the run ends for any reason. All of that is in its own history: the request in the record that
starts it, the return in the record that ends it, both in its outbox. So no slot can be lost in
between. One instance per limit counts the slots; it belongs to the same workflow and is decided by
an engine of its own (`processors.slots`). Runs and that instance identify each other by tickets.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.state import Run, Slot
from headwater.schemas.failures import SLOT_GRANTED_BEFORE, SLOT_NOT_WANTED
from headwater.schemas.history import (
    AskSlot,
    GrantSlot,
    Json,
    Post,
    PostsQueued,
    ReturnSlot,
    RunEvent,
    RunStarted,
    SlotAsked,
    SlotGranted,
)

#: Engine of the instances that count slots.
SLOTS: Final = "slots"
#: Prefix of the id of an instance that counts slots; no other id can have it.
SLOTS_ID: Final = "~"
#: Largest limit of concurrent runs: a larger number is a mistake.
LIMIT_MAX: Final = 1_000_000


class Concurrency(msgspec.Struct, frozen=True):
    """Maximum number of concurrent runs of a workflow: `Concurrency(3)`.

    With a key, a CEL expression over `params`, the limit applies to every value of the key:
    `Concurrency(3, key="params.region")`.

    Raises:
        ValueError: The limit is below 1, or the key is not an expression.
    """

    limit: int
    key: str | None = None

    def __post_init__(self) -> None:
        limit: object = self.limit
        if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
            raise ValueError(
                f"expected a limit of concurrency of 1 to {LIMIT_MAX} runs, found {limit!r}"
            )
        key: object = self.key
        if key is not None and (not isinstance(key, str) or not key.strip()):
            raise ValueError(
                'expected the key of a limit to be an expression in CEL such as "params.region", '
                f"found {key!r}"
            )


#: Limits of workflows by name; None for a workflow that is known to have none.
Concurrencies: TypeAlias = Mapping[str, Concurrency | None]


class SlotScope(msgspec.Struct, frozen=True):
    """The limit that applies to a run: the instance that counts its slots, and the key."""

    slots: str
    key: Json | None = None


def ticket(instance_id: str, run_number: int, seed: str) -> str:
    """Return the ticket that identifies a run where slots are counted."""
    return f"{instance_id}#{run_number}#{seed}"


def holder_of(ticket_: str) -> tuple[str, int]:
    """Return the instance and the run of a ticket."""
    instance_id, run_number, _ = ticket_.split("#", 2)
    return instance_id, int(run_number)


def is_ticket(text: str) -> bool:
    """Return whether a text is a ticket."""
    instance_id, _, rest = text.partition("#")
    run_number, _, seed = rest.partition("#")
    return bool(instance_id and seed) and run_number.isdecimal() and run_number.isascii()


def _ticket_of(run: Run) -> str:
    return ticket(run.instance_id, run.run_number, run.seed)


def slot_return(run: Run) -> list[Post]:
    """Return the post by which an ending run returns its slot, or its position in the queue."""
    if run.slot is None:
        return []
    return [Post(0, run.workflow, run.slot.slots, ReturnSlot(_ticket_of(run)))]


def with_slot_request(
    run: Run | None, address: tuple[str, str], started: list[RunEvent], scope: SlotScope | None
) -> list[RunEvent]:
    """Return the start of a run, which requests a slot before anything else.

    A run that replaces one that has not ended returns the slot of that run as well.

    Args:
        run: The previous run, or None.
        address: Workflow and instance.
        started: Events that begin with RunStarted.
        scope: The limit that applies to the run, or None.
    """
    first, *others = started
    assert isinstance(first, RunStarted)  # noqa: S101, every run starts with it
    workflow, instance_id = address
    posts = slot_return(run) if run is not None and not run.ended else []
    requests: list[RunEvent] = []
    if scope is not None:
        number = 0 if run is None else run.run_number + 1
        own_ticket = ticket(instance_id, number, first.seed)
        posts.append(Post(0, workflow, scope.slots, AskSlot(own_ticket, scope.key)))
        requests.append(SlotAsked(scope.slots, scope.key))
    return [first, *requests, *others, *_numbered(posts, _next_post(run, others))]


def _next_post(run: Run | None, events: Sequence[RunEvent]) -> int:
    """Return the number of the next post, after those that are queued already."""
    queued = [event.posts[-1].number for event in events if isinstance(event, PostsQueued)]
    if queued:
        return queued[-1] + 1
    return 0 if run is None else run.posted


def _numbered(posts: Sequence[Post], first: int) -> list[RunEvent]:
    if not posts:
        return []
    numbered = enumerate(posts, first)
    return [PostsQueued(tuple(msgspec.structs.replace(post, number=n) for n, post in numbered))]


def grant_refusal(run: Run, command: GrantSlot) -> Rejection | None:
    """Return why a run does not accept a granted slot, or None if it does.

    The instance that counts slots takes back a rejected one (`streams.engine.effects`).
    """
    if run.slot is None or run.ended or command.ticket != _ticket_of(run):
        return Rejection(SLOT_NOT_WANTED, f"{run.instance_id} does not wait for this slot")
    if run.slot.granted:
        return Rejection(SLOT_GRANTED_BEFORE, f"{run.instance_id} has its slot already")
    return None


def no_slots(run: Run) -> Decision:
    """Return the rejection of a command that only instances which count slots accept."""
    return Rejection(SLOT_NOT_WANTED, f"{run.instance_id} counts no slots")


def slot_asked(run: Run, event: SlotAsked) -> None:
    """Record that the run waits for its slot."""
    run.slot = Slot(event.slots, event.key)


def slot_granted(run: Run, _: SlotGranted) -> None:
    """Record that the run has its slot."""
    if run.slot is not None:
        run.slot = msgspec.structs.replace(run.slot, granted=True)
