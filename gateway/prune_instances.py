"""Prunes as instances of a workflow: its name, params, and how far it says it is.

What it does is in `gateway.builtin.prune_workflow`; whoever starts one, or looks at it, is here.
"""

from typing import Final

import msgspec

from headwater.projections.workflows.expired import FIRST, Expiry, PruneCursor

#: The workflow whose instances are prunes.
PRUNE: Final = "headwater-prune"
#: The step that has deleted a page: its result is a `Pruned`.
PAGE: Final = "page"
#: The step that has the log forget them: its result is the number of records.
ERASE: Final = "erase"


class PruneParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a prune is started with."""

    asked: Expiry
    matched: int


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """How far a prune is; kept counts instances to which something has happened meanwhile."""

    deleted: int = 0
    kept: int = 0
    after: PruneCursor | None = FIRST
