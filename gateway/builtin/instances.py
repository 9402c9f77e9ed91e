"""Built-in workflows as instances: names, params and progress, for code that starts or reads them.

The workflows are in `gateway.builtin.maintenance_workflows` and `gateway.builtin.terra_workflows`.
Those that deliveries start are named in `processors.providers.terra.backfill` and
`processors.providers.headwater`. Dates are YYYY-MM-DD; ranges include the last day.
"""

from typing import Final

import msgspec

from headwater.projections.deliveries.replaying import FIRST as FIRST_DELIVERY
from headwater.projections.deliveries.replaying import ReplayCursor, Selection
from headwater.projections.workflows.instances import FIRST as FIRST_INSTANCE
from headwater.projections.workflows.instances import Expiry, PruneCursor

#: The workflow of prunes.
PRUNE: Final = "headwater-prune"
#: The step that deletes a page: its result is a `Pruned`.
PRUNE_PAGE: Final = "page"
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
    after: PruneCursor | None = FIRST_INSTANCE


# -- replays

#: The workflow of replays.
REPLAY: Final = "headwater-replay"
#: The step that replays a page: its result is a `ReplayProgress`.
REPLAY_PAGE: Final = "page"


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


class ReplayProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a replay; `gone` counts deliveries that are no longer in the log."""

    replayed: int = 0
    gone: int = 0
    after: ReplayCursor | None = FIRST_DELIVERY


# -- requests to Terra

#: The last 7 days of every active connection; started by the schedule of the same name.
RECONCILE: Final = "terra-reconcile"
#: Past days of a user's active connections; started by the user.
IMPORT: Final = "terra-import"


class ImportParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of `terra-import`.

    Attributes:
        user_id: The user.
        days: Number of days, 1 to 1460.
        until: The last day, that of the request.
        connections: Terra's ids of the connections that were active at the request.
    """

    user_id: str
    days: int
    until: str
    connections: tuple[str, ...]


class LabResult(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `terra-lab`, which also publishes it as `lab_submitted`.

    It is available within about half a minute, even if Terra does not respond.

    Attributes:
        at_ms: When Terra responded or the upload was abandoned, in Unix milliseconds.
        terra_status: `submitted`, `failed:<status>` or `failed:network`.
        terra_upload_id: Terra's id, if the report was submitted.
        terra_response: Terra's response as text, or the error.
    """

    at_ms: int
    terra_status: str
    terra_upload_id: str | None
    terra_response: str
