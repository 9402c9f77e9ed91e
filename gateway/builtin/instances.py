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
    """Deliveries to replay: those that match all selectors, or `all` deliveries.

    `since` and `until` are RFC 3339 and refer to the time of receipt. `from` and `to` are offsets
    of the partition, inclusive. `rate` is in deliveries a second.
    """

    rate: Annotated[int, msgspec.Meta(ge=1, le=_RATE_MAX)] | None = None
    dry_run: bool = False

    @property
    def selectors(self) -> tuple[str, ...]:
        """Names of the selectors that are set."""
        names = [name for name in Selection.__struct_fields__ if name != "all"]
        return tuple(name for name in names if getattr(self, name) is not None)


class ReplayParams(ReplayOrder, frozen=True, kw_only=True):
    """Params of a replay, with the number of deliveries.

    Histories outlive a wipe, so the user is not named, but identified by `user_sha256`.
    """

    user_sha256: str | None = None
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


# -- replays to endpoints

#: The workflow that sends an endpoint what happened within a time.
RESEND: Final = "headwater-endpoint-replay"


class ResendParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of RESEND: what happened from `since_ms` to before `until_ms`, Unix milliseconds.

    Attributes:
        delivered: Whether also what the endpoint has accepted is sent again.
    """

    endpoint: str
    since_ms: int
    until_ms: int
    delivered: bool


# -- requests to Terra

#: The last 7 days of every active connection; started by the schedule of the same name.
RECONCILE: Final = "terra-reconcile"
#: Days that are requested of a connection that has become active.
BACKFILL_DAYS: Final = 90
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


#: One user's connections, compared with Terra's list, and their last 7 days; started by operators.
RECONCILE_USER: Final = "terra-reconcile-user"


class ReconcileUserParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of `terra-reconcile-user`: the user."""

    user_id: str


#: The end of connections, at Terra and then here; started by the user or operators.
DISCONNECT: Final = "terra-disconnect"


class DisconnectParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of `terra-disconnect`: the user, and Terra's ids of the connections."""

    user_id: str
    connections: tuple[str, ...]


#: The step of `terra-lab` that sends the report: its result is a `LabResult`.
SUBMIT: Final = "submit"


class LabResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the step `submit` of `terra-lab`, which is published as `lab_submitted`.

    It is available within about half a minute, even if Terra does not respond. The instance then
    waits for the report, for 24 hours.

    Attributes:
        at_ms: When Terra responded or the upload was abandoned, in Unix milliseconds.
        terra_status: `submitted`, `failed:<status>`, `failed:network` or
            `failed:terra_not_configured`.
        terra_upload_id: Terra's id, if the report was submitted.
        terra_response: Terra's response as text, or the error.
    """

    at_ms: int
    terra_status: str
    terra_upload_id: str | None
    terra_response: str
