"""Prunes as instances of a workflow: its name, params and progress.

The workflow is `gateway.builtin.prune_workflow`; this module is for code that starts or reads
prunes.
"""

from typing import Final

import msgspec

from headwater.projections.workflows.expired import FIRST, Expiry, PruneCursor

#: The workflow whose instances are prunes.
PRUNE: Final = "headwater-prune"
#: The step that deletes a page: its result is a `Pruned`.
PAGE: Final = "page"
#: The step that compacts the log: its result is the number of records.
ERASE: Final = "erase"


class PruneParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of a prune."""

    asked: Expiry
    matched: int


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a prune; `kept` counts instances that changed after they were counted."""

    deleted: int = 0
    kept: int = 0
    after: PruneCursor | None = FIRST
