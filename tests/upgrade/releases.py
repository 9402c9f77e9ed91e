"""Two releases of this tree: what it is now, released, and the one that comes after it.

The next release has a kind of event more, and a field more in deliveries, histories, commands and
rows. Both are trees of sources, each with a catalogue as a release would leave it.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from headwater.schemas.avro_schemas import IDS

ROOT = Path(__file__).parents[2]
_ROOMS = ("schemas", "processors", "streams", "projections", "gateway", "src")
_RECORDS = "schemas/records.py"
_HISTORY = "schemas/history/records.py"
_TABLES = "schemas/tables.py"
_NOTED = '''class RunNoted(Tagged, frozen=True):
    """Somebody noted something about the run."""

    #: The note.
    text: str


'''
#: What has an id that says so has something to say in the new field.
_REGION = """
    #: Where it belongs, when known.
    region: str = ""

    def __post_init__(self) -> None:
        if {}:
            msgspec.structs.force_setattr(self, "region", "eu")
"""


def make_releases(directory: Path) -> tuple[Path, Path]:
    """Makes the trees of this release and of the next one."""
    trees = directory / "old", directory / "new"
    for tree in trees:
        for room in _ROOMS:
            # With its bytecode, which fits: copies keep their times.
            shutil.copytree(ROOT / room, tree / room, symlinks=True)
    new = trees[1]
    _edit(
        new / "schemas/write.py", r"(RELEASED_THROUGH: Final = )\d+", rf"\g<1>{max(IDS.values())}"
    )
    for path, struct, is_eu in (
        (_RECORDS, "WebhookReceived", "self.request_id.startswith('eu-')"),
        (_RECORDS, "OutcomeRecorded", "self.user_id == 'user_96'"),
        (_HISTORY, "HistoryAppended", "self.instance_id.startswith('eu-')"),
    ):
        _field(new / path, struct, _REGION.format(is_eu))
    _field(new / _HISTORY, "CommandSent", '\n    #: Who asked.\n    asker: str = ""\n')
    _field(new / _TABLES, "DailySummary", "    #: How it felt.\n    mood: str | None = None\n")
    _edit(new / _HISTORY, r"(LogEvent: TypeAlias = )", rf"{_NOTED}\g<1>RunNoted | ")
    _edit(
        new / _HISTORY,
        r"\n(import msgspec\n)",
        r"\n\g<1>\nfrom headwater.schemas.history.values import Tagged\n",
    )
    run(new, "-m", "headwater.schemas.write")
    return trees


def run(tree: Path, *arguments: str) -> str:
    """Runs Python with a release; returns what it prints."""
    env = environment(tree)
    argv = [sys.executable, *arguments]
    done = subprocess.run(argv, env=env, cwd=tree, check=True, capture_output=True, text=True)
    return done.stdout


def environment(tree: Path) -> dict[str, str]:
    """The environment of a process of a release."""
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}"}


def _field(path: Path, struct: str, text: str) -> None:
    """Adds to the end of a struct."""
    _edit(path, rf"(class {struct}\(.*?)(\n\n\n)", rf"\g<1>\n{text.rstrip()}\g<2>")


def _edit(path: Path, pattern: str, text: str) -> None:
    before = path.read_text()
    after, count = re.subn(pattern, text, before, count=1, flags=re.DOTALL)
    assert count == 1, f"{path} has nothing like {pattern}"
    path.write_text(after)
