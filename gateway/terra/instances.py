"""The workflows that ask Terra for data: their names, ids and params, for whoever starts them.

What they do is in `gateway.builtin`. Those that deliveries start are named among the normalizers:
`processors.providers.terra.backfill`, `processors.providers.headwater.labs`. Dates are YYYY-MM-DD,
the last one included.
"""

from typing import Final

import msgspec

#: The last 7 days of every active connection; started by the schedule of the same name.
RECONCILE: Final = "terra-reconcile"
#: Some days of a user's active connections, because the user asked for them.
IMPORT: Final = "terra-import"


class ImportParams(msgspec.Struct, frozen=True, kw_only=True):
    """What `terra-import` is started with.

    Shape:  days is 1 to 1460, until the day of the request; connections are Terra's ids of those
            that were active then. It asks for each of them, type by type.
    """

    user_id: str
    days: int
    until: str
    connections: tuple[str, ...]


class LabResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `terra-lab` gives, when it has told the same as `lab_submitted`.

    Units:  at_ms, when Terra answered or was given up, in Unix milliseconds.
    Shape:  terra_status is `submitted`, `failed:<status>` or `failed:network`; terra_upload_id is
            there once it was submitted; terra_response is Terra's answer as text, or what went
            wrong. It is given within about half a minute, whatever Terra does.
    """

    at_ms: int
    terra_status: str
    terra_upload_id: str | None
    terra_response: str
