"""Replays of deliveries as instances of a workflow: its name, params and progress.

The workflow is `gateway.builtin.replay_workflow`; this module is for code that starts or reads
replays.
"""

from typing import Final

import msgspec

from headwater.projections.deliveries.replaying import FIRST, ReplayCursor, Selection

#: The workflow whose instances are replays.
REPLAY: Final = "headwater-replay"
#: The step that replays a page: its result is a `Progress`.
PAGE: Final = "page"


class ReplayParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of a replay.

    Attributes:
        user_id: User of the deliveries, if it is only one: a wipe of the user finds the replay by
            it.
        rate: Deliveries a second; 0 for no limit.
        dry_run: Whether it was only counted, which happens before it begins.
    """

    selection: Selection
    matched: int
    user_id: str | None = None
    rate: int = 0
    dry_run: bool = False


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a replay; `gone` counts deliveries that are no longer in the log."""

    replayed: int = 0
    gone: int = 0
    after: ReplayCursor | None = FIRST
