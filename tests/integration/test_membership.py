"""Members of the system on a real broker: who joins and leaves changes what all write."""

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from headwater.schemas.codec import SchemaVersion
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.membership import Membership

PATIENCE_S = 60.0

Told: TypeAlias = "queue.Queue[Mapping[str, SchemaVersion]]"


@contextmanager
def member(bootstrap: str, name: str, **reads: int) -> Iterator[Told]:
    """A member, and the forms that it learns."""
    reported: Told = queue.Queue()
    membership = Membership(
        cluster=Cluster(bootstrap), member=name, reads=reads, on_versions=reported.put
    )
    membership.start()
    try:
        yield reported
    finally:
        membership.stop()


def until(told: Told, forms: Mapping[str, SchemaVersion]) -> None:
    """Waits until these forms are learnt."""
    seen = []
    while not seen or seen[-1] != forms:
        seen.append(told.get(timeout=PATIENCE_S))


def test_all_learn_of_a_member_that_joins_and_that_leaves(topics: str):
    with member(topics, "new", event=2, row=1) as one:
        until(one, {"event": SchemaVersion(2), "row": SchemaVersion(1)})
        with member(topics, "old", event=1, row=1) as other:
            mixed = {"event": SchemaVersion(1, "old"), "row": SchemaVersion(1)}
            until(other, mixed)
            until(one, mixed)
        until(one, {"event": SchemaVersion(2), "row": SchemaVersion(1)})


def test_the_leader_need_not_know_what_the_others_write(topics: str):
    with member(topics, "old", event=1) as leader:
        until(leader, {"event": SchemaVersion(1)})
        with member(topics, "new", event=2, mood=1) as other:
            until(other, {"event": SchemaVersion(1, "old"), "mood": SchemaVersion(0, "old")})
