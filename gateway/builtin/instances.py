"""Built-in workflows as their clients see them: names, params, progress and results.

The workflows are in `gateway.builtin`: `wipe_and_replay_workflows`, `verify_workflow` and
`terra_workflows`.
Those that deliveries start are named in `processors.providers.terra.backfill`,
`processors.providers.headwater` and `processors.wipes`. Dates are YYYY-MM-DD; ranges include the
last day.
"""

from typing import Annotated, Final

import msgspec

from headwater.projections.deliveries.replaying import Selection
from headwater.projections.workflows.instances import Expiry


class InstanceNamed(msgspec.Struct, frozen=True):
    """An instance of a workflow."""

    workflow: str
    id: str


# -- prunes and replays

#: The workflow of prunes.
PRUNE: Final = "headwater-prune"
#: The workflow of replays.
REPLAY: Final = "headwater-replay"
#: The workflow of nightly verifications; started by the schedule of the same name.
VERIFY: Final = "headwater-verify"
_RATE_MAX: Final = 100_000
#: The step of an operation that handles a page: its result is a `PageProgress`.
PAGE: Final = "page"
#: The step after the last page of a prune: its result is the number of records.
ERASE: Final = "erase"


class PruneParams(Expiry, frozen=True, kw_only=True):
    """Params of a prune, with the number of instances."""

    matched: int


class ReplayOrder(Selection, frozen=True, kw_only=True):
    """Deliveries to replay: those that match all filters; without filters, all deliveries.

    `since` and `until` are RFC 3339 and refer to the time of receipt. `from` and `to` are offsets
    of the partition, inclusive. `rate` is in deliveries a second.
    """

    rate: Annotated[int, msgspec.Meta(ge=1, le=_RATE_MAX)] | None = None
    dry_run: bool = False


class ReplayParams(ReplayOrder, frozen=True, kw_only=True):
    """Params of a replay, with the number of deliveries. A wipe of its `user_id` finds it."""

    matched: int


class PageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an operation.

    Attributes:
        done: Number of instances that were deleted, or of deliveries that were replayed.
        skipped: Number of instances that changed after they were counted, or of deliveries that
            are no longer in the log.
        after: Cursor of the next page; None after the last page.
    """

    done: int = 0
    skipped: int = 0
    after: tuple[str, ...] | None = ()


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
