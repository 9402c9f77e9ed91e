"""Names and params of the workflows that request data from Terra.

The workflows are in `gateway.builtin`. Those that deliveries start are named in
`processors.providers.terra.backfill` and `processors.providers.headwater.labs`. Dates are
YYYY-MM-DD; ranges include the last day.
"""

from typing import Final

import msgspec

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
        at_ms: When Terra responded or the upload was given up, in Unix milliseconds.
        terra_status: `submitted`, `failed:<status>` or `failed:network`.
        terra_upload_id: Terra's id, if the report was submitted.
        terra_response: Terra's response as text, or the error.
    """

    at_ms: int
    terra_status: str
    terra_upload_id: str | None
    terra_response: str
