"""Limits of concurrency, as the runs know them that ask for a slot.

A run of a limited workflow begins by asking for a slot, waits until it has it, and gives it back
when it ends, in whatever way. All of that is in its own history: the ask in the record that begins
it, the return in the record that ends it, both in its outbox. So no slot can be lost between the
two. Slots are counted by one instance for each limit, which is of the same workflow and decided by
an engine of its own (`processors.slots`); it and the runs know each other by tickets.
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

#: The engine of instances that count slots.
SLOTS: Final = "slots"
#: Begins the id of an instance that counts slots; no id of another can.
SLOTS_ID: Final = "~"
#: Most runs that may be under way at once: more is no limit, but a mistake.
LIMIT_MAX: Final = 1_000_000


class Concurrency(msgspec.Struct, frozen=True):
    """How many runs of a workflow may be under way at once: `Concurrency(3)`.

    Shape:  with a key, an expression in CEL over `params`, so many for each value of it:
            `Concurrency(3, key="params.region")`.
    Errors: ValueError for a limit below 1.
    """

    limit: int
    key: str | None = None

    def __post_init__(self) -> None:
        given: object = self.limit
        if type(given) is not int or not 1 <= given <= LIMIT_MAX:
            raise ValueError(
                f"expected a limit of concurrency of 1 to {LIMIT_MAX} runs, found {given!r}"
            )
        key: object = self.key
        if key is not None and (not isinstance(key, str) or not key.strip()):
            raise ValueError(
                'expected the key of a limit to be an expression in CEL such as "params.region", '
                f"found {key!r}"
            )


#: The limits of workflows, by name; None of one that is known to have none.
Concurrencies: TypeAlias = Mapping[str, Concurrency | None]


class Place(msgspec.Struct, frozen=True):
    """The limit that a run falls under: the instance that counts its slots, and its key."""

    slots: str
    key: Json | None = None


def ticket(instance_id: str, run_number: int, seed: str) -> str:
    """What a run is known by where slots are counted."""
    return f"{instance_id}#{run_number}#{seed}"


def holder_of(ticket_: str) -> tuple[str, int]:
    """The instance and the run of a ticket."""
    instance_id, run_number, _ = ticket_.split("#", 2)
    return instance_id, int(run_number)


def is_ticket(text: str) -> bool:
    """Return whether a text is a ticket."""
    instance_id, _, rest = text.partition("#")
    run_number, _, seed = rest.partition("#")
    return bool(instance_id and seed) and run_number.isdecimal() and run_number.isascii()


def _own(run: Run) -> str:
    return ticket(run.instance_id, run.run_number, run.seed)


def returned(run: Run) -> list[Post]:
    """What a run sends when it ends: its slot, or its place among those who wait."""
    if run.slot is None:
        return []
    return [Post(0, run.workflow, run.slot.slots, ReturnSlot(_own(run)))]


def asking(
    run: Run | None, who: tuple[str, str], started: list[RunEvent], place: Place | None
) -> list[RunEvent]:
    """The beginning of a run, which asks for a slot before anything else.

    Shape:  (the run before it, workflow and instance, events that begin with RunStarted, its limit
            or None). A run that is followed while it is under way gives its own slot back.
    """
    first, *others = started
    assert isinstance(first, RunStarted)  # noqa: S101, that is how a run begins
    workflow, instance_id = who
    posts = returned(run) if run is not None and not run.ended else []
    asked: list[RunEvent] = []
    if place is not None:
        number = 0 if run is None else run.run_number + 1
        mine = ticket(instance_id, number, first.seed)
        posts.append(Post(0, workflow, place.slots, AskSlot(mine, place.key)))
        asked.append(SlotAsked(place.slots, place.key))
    return [first, *asked, *others, *_numbered(posts, _next_post(run, others))]


def _next_post(run: Run | None, events: Sequence[RunEvent]) -> int:
    """The number of the next post, behind those that are queued already."""
    queued = [event.posts[-1].number for event in events if isinstance(event, PostsQueued)]
    if queued:
        return queued[-1] + 1
    return 0 if run is None else run.posted


def _numbered(posts: Sequence[Post], first: int) -> list[RunEvent]:
    if not posts:
        return []
    numbered = enumerate(posts, first)
    return [PostsQueued(tuple(msgspec.structs.replace(post, number=n) for n, post in numbered))]


def granted(run: Run, command: GrantSlot) -> Rejection | None:
    """Says why a run does not take what it is told of its slot; None if it does.

    What it does not want, the instance that counts gets back (`streams.engine.refusal_notices`).
    """
    if run.slot is None or run.ended or command.ticket != _own(run):
        return Rejection(SLOT_NOT_WANTED, f"{run.instance_id} does not wait for this slot")
    if run.slot.granted:
        return Rejection(SLOT_GRANTED_BEFORE, f"{run.instance_id} has its slot already")
    return None


def no_slots(run: Run) -> Decision:
    """The refusal of what is for those who count slots."""
    return Rejection(SLOT_NOT_WANTED, f"{run.instance_id} counts no slots")


def slot_asked(run: Run, event: SlotAsked) -> None:
    """The run waits for its slot."""
    run.slot = Slot(event.slots, event.key)


def slot_granted(run: Run, _: SlotGranted) -> None:
    """The run has its slot."""
    if run.slot is not None:
        run.slot = msgspec.structs.replace(run.slot, granted=True)
