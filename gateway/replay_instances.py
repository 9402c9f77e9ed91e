"""Replays of deliveries as instances of a workflow: its name, params, and how far it says it is.

What it does is in `gateway.builtin.replay_workflow`; whoever starts one, or looks at it, is here.
"""

from typing import Final

import msgspec

from headwater.projections.deliveries.replaying import FIRST, ReplayCursor, Selection

#: The workflow whose instances are replays.
REPLAY: Final = "headwater-replay"
#: The step that has replayed a page: its result is a `Progress`.
PAGE: Final = "page"


class ReplayParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay is started with.

    Units:  rate in deliveries a second, 0 for as fast as they are appended.
    """

    selection: Selection
    matched: int
    #: Whom it is about, if it is about one user: a wipe goes by it.
    user_id: str | None = None
    rate: int = 0
    #: Whether it was only to be counted, which it was before it began.
    dry_run: bool = False


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay is; gone counts deliveries of which the log has no bytes any more."""

    replayed: int = 0
    gone: int = 0
    after: ReplayCursor | None = FIRST
