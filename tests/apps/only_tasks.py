"""An app of tasks alone: their graphs are deployed over HTTP."""

import os
from pathlib import Path
from typing import Any

from headwater import task


@task("note")
def note(given: dict[str, Any]) -> dict[str, Any]:
    Path(given["file"]).write_text(str(os.getpid()))
    return {}
