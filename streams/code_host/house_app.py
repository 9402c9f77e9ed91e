"""The house's own app: the workflows that come with Headwater.

Every worker serves it, beside the apps that it is told to serve and in a host of its own: nothing
of it has to be in anybody's code, and no author's code can end it.
"""

from collections.abc import Iterable
from typing import Final

from headwater.streams.code_host.schedule_runner import ScheduleRunner
from headwater.streams.replay.workflow import Workflow

#: How it is named where apps are.
HOUSE_APP: Final = "headwater"


def house_workflows(schedules: Iterable[str]) -> dict[str, Workflow]:
    """Its workflows by name.

    Shape:  schedules are the names of those that the apps of the worker declare.
    """
    return {each.name: each for each in (ScheduleRunner(schedules),)}
