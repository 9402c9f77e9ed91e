"""Parse timestamps in requests."""

import re
from datetime import datetime
from typing import Final

from headwater.gateway.api.problems import Problem
from headwater.processors.dates import read_moment

#: A plus sign that was not escaped arrives as a space.
_UNESCAPED_PLUS: Final = re.compile(r" (?=\d\d:\d\d$)")
_SHOWN_CHARS: Final = 60


def moment_of(field: str, text: str | None) -> datetime | None:
    """Parse a timestamp in a parameter or a field of a body; None stays None.

    Raises:
        Problem: It is not RFC 3339 with an offset.
    """
    if text is None:
        return None
    moment = read_moment(_UNESCAPED_PLUS.sub("+", text))
    if moment is None:
        detail = (
            f"{field}: expected RFC 3339 with an offset, for example 2026-07-01T00:00:00Z, found "
            f"{text[:_SHOWN_CHARS]!r}"
        )
        raise Problem("invalid_parameter", detail, field=field)
    return moment
