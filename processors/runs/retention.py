"""How long instances that have ended are kept, as operators write it: for ever by default."""

from collections.abc import Mapping
from typing import Final

import msgspec

from headwater.processors.runs.durations import milliseconds
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_fault

__all__ = ["FOR_EVER", "Retention", "read_retention"]

_NEVER: Final = "never"
_EXPECTED: Final = (
    'expected durations separated by commas, such as "order=90 days, 1 day" or "order=never, 30 '
    'days": each for a workflow, and one for all others, found {0!r}{1}'
)


class Retention(msgspec.Struct, frozen=True):
    """How long instances are kept once they have ended; None is for ever.

    Units:  milliseconds.
    """

    of_workflow: Mapping[str, int | None] = {}
    of_others: int | None = None

    def until_ms(self, workflow: str, ended_at_ms: int) -> int | None:
        """Until when an instance is kept; None for ever."""
        kept_ms = self.of_workflow.get(workflow, self.of_others)
        return None if kept_ms is None else ended_at_ms + kept_ms


FOR_EVER: Final = Retention()


def read_retention(text: str) -> Retention:
    """Reads what an operator wrote; nothing is for ever.

    Errors: ValueError.
    """
    of_workflow: dict[str, int | None] = {}
    of_others: list[int | None] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, given, duration = part.rpartition("=")
        name = name.strip()
        fault = given and name_fault("the name of a workflow", name, WORKFLOW_NAME_MAX)
        if fault:
            raise ValueError(_EXPECTED.format(text, f": {fault}"))
        if name in of_workflow or (not given and of_others):
            raise ValueError(_EXPECTED.format(text, f", which says {name or 'all others'} twice"))
        kept_ms = _read(duration.strip(), text)
        if given:
            of_workflow[name] = kept_ms
        else:
            of_others.append(kept_ms)
    return Retention(of_workflow, of_others[0] if of_others else None)


def _read(duration: str, text: str) -> int | None:
    if duration == _NEVER:
        return None
    try:
        return milliseconds(duration)
    except ValueError as why:
        raise ValueError(_EXPECTED.format(text, f": {why}")) from None
