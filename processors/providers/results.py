"""What normalizing a delivery can come to."""

from typing import TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate


class Normalized(msgspec.Struct, frozen=True):
    """The rows that a delivery sets columns of."""

    updates: tuple[RowUpdate, ...]


class Skipped(msgspec.Struct, frozen=True):
    """A delivery that is understood and holds nothing to store."""

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """A delivery that cannot be stored as it is: a dead letter, with the reason."""

    code: str
    detail: str


NormalizeResult: TypeAlias = Normalized | Skipped | Failed
