"""Built-in workflows are not among those of authors."""

import re

from headwater.gateway.builtin.__main__ import _builtin_app
from headwater.projections.workflows.listings import OF_AUTHORS


def test_listings_leave_out_every_built_in_workflow() -> None:
    condition = OF_AUTHORS.as_string(None)
    named = set(re.findall(r"'([a-z-]+)'", condition)) - {"headwater-"}
    builtin = {name for name in _builtin_app([]).workflows if not name.startswith("headwater-")}
    assert named == builtin
