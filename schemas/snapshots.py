"""Record with the state of a workflow instance, so that its history need not be read.

A snapshot is never a fact: without any, histories alone result in the same states.
"""

import msgspec


class SnapshotTaken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of an instance (topic `workflow-snapshots`, key: the instance's key).

    Without a key and a state it is a checkpoint: all instances of the partition have snapshots that
    contain everything before its position. With a key and without a state, it records that the
    instance was deleted; then it is the header `removed` of a tombstone.
    """

    #: The engine of the instance's runs; empty in a checkpoint.
    kind: str
    #: Version of that engine's state encoding; a reader that does not know it folds the history
    #: instead.
    format: int
    #: Whether the state is compressed, by zlib.
    compressed: bool
    #: Epoch of the partition at that position.
    epoch: int
    #: Offset in the history from which on events are not in the state yet.
    position: int
    #: Offset of the last command that is in the state; -1 if none is.
    cause: int
    #: When a timer next changes the instance, Unix milliseconds; 0 immediately, -1 never.
    wake_at_ms: int
    #: The state, in that encoding; or its first part.
    state: bytes
    #: Number of records that hold the state. The others were written before, with the same epoch
    #: and position; their keys are this one's, # and a number from 1 on.
    parts: int = 1
    #: Leader epoch of the partition of workflow-commands until which the commands up to `cause`
    #: were appended; -1 if not known.
    leader_epoch: int = -1
