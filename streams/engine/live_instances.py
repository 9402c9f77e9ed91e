"""The instances of a partition in memory: those at work as objects, the others as bytes.

An instance that sleeps for a month, or has ended, costs its bytes and a timer. The same bytes are
its snapshot.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from headwater.processors.replay.state import CodeRun
from headwater.processors.replay.waits import next_wake_ms
from headwater.processors.runs.state import RunStatus

if TYPE_CHECKING:
    from headwater.streams.engine.host_protocol import Started, ToHost

#: Version of the encoding of states: a change of CodeRun, Run, Entry or their parts is a new one.
FORMAT: Final = 9
#: The same, compressed by zlib: what would be too large for a record otherwise.
COMPRESSED: Final = 10

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(CodeRun)


class Hand:
    """What the owner holds of an instance at work, besides its state."""

    __slots__ = (
        "activation",
        "attempts",
        "batch",
        "held",
        "key",
        "ready",
        "resting",
        "run",
        "since_ms",
        "tail",
        "tail_bytes",
    )

    def __init__(self, key: str, run: CodeRun) -> None:
        self.key = key
        self.run = run
        self.activation: int | None = None
        #: Attempts under way, by the key of their step; None until their host says they take long.
        self.attempts: dict[str, Started | None] = {}
        #: What a run that is paused, or rests, will be told when it goes on.
        self.held: list[ToHost] = []
        self.resting = False
        self.ready = False
        #: The place in the batch of the record that more events may join.
        self.tail: int | None = None
        self.tail_bytes = 0
        #: The number of the latest batch that has events of it.
        self.batch = 0
        #: Since when nothing has happened to it.
        self.since_ms = 0

    def may_cool(self) -> bool:
        """Whether its bytes are all there is to keep of it."""
        run = self.run
        if self.ready or self.held or self.attempts or run.unsent:
            return False
        return run.ended or run.status is not RunStatus.ACTIVE


class Instances:
    """The instances of a partition, by key."""

    def __init__(self) -> None:
        self._hot: dict[str, Hand] = {}
        self._cold: dict[str, bytes] = {}
        self._warmed: list[Hand] = []

    def __len__(self) -> int:
        return len(self._hot) + len(self._cold)

    def counts(self) -> tuple[int, int]:
        """How many are at work, and how many are bytes."""
        return len(self._hot), len(self._cold)

    def find(self, key: str) -> Hand | None:
        """The instance of a key, taken out of its bytes if need be."""
        hand = self._hot.get(key)
        if hand is None and key in self._cold:
            hand = self._hot[key] = Hand(key, _DECODER.decode(self._cold.pop(key)))
            self._warmed.append(hand)
        return hand

    def at_hand(self, key: str) -> Hand | None:
        """The instance of a key, if it is at work."""
        return self._hot.get(key)

    def take_warmed(self) -> list[Hand]:
        """The instances that were taken out of their bytes since the last call."""
        warmed, self._warmed = self._warmed, []
        return warmed

    def add(self, key: str, run: CodeRun) -> Hand:
        """Takes an instance in."""
        hand = self._hot[key] = Hand(key, run)
        return hand

    def add_cold(self, key: str, state: bytes) -> None:
        """Takes an instance in as its bytes."""
        self._hot.pop(key, None)
        self._cold[key] = state

    def cool(self, hand: Hand) -> None:
        """Keeps only the bytes of an instance."""
        del self._hot[hand.key]
        self._cold[hand.key] = encoded(hand.run)

    def state(self, key: str) -> bytes:
        """The bytes of an instance."""
        cold = self._cold.get(key)
        return cold if cold is not None else encoded(self._hot[key].run)

    def at_work(self) -> Iterator[Hand]:
        """The instances that are not bytes."""
        return iter(list(self._hot.values()))


def encoded(run: CodeRun) -> bytes:
    """The bytes of a state. Of a run that is over, only what a restart or a retry needs is kept."""
    if run.ended and run.status is not RunStatus.ERRORED and run.entries:
        run.entries.clear()
        run.open.clear()
        run.mailbox.clear()
    return _ENCODER.encode(run)


def wake_at_ms(state: bytes) -> int:
    """When time moves an instance again: 0 is at once, -1 never."""
    run = _DECODER.decode(state)
    if run.unsent or (run.status is RunStatus.ACTIVE and not run.back_at_ms):
        return 0
    wake = next_wake_ms(run)
    return -1 if wake is None else wake
