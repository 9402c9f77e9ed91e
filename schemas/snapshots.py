"""The record that holds the state of a workflow's instance, so that its history need not be read.

A snapshot is never a fact: without any, histories alone give the same states.
"""

import msgspec


class SnapshotTaken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of an instance (topic `workflow-snapshots`, key: the instance's key).

    Shape:  state is the engine's own encoding of version `format`; a reader that does not know the
            format folds the history instead. Position is the history's offset from which on events
            are not yet in it; epoch and cause are those of the partition there. wake_at_ms is when
            time moves it again, 0 at once, -1 never. Without a key and a state it is a checkpoint:
            all instances of the partition have snapshots that hold what is before its position.
    """

    format: int
    epoch: int
    position: int
    cause: int
    wake_at_ms: int
    state: bytes
