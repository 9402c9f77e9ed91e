"""The built-in app: the workflows that are part of Headwater.

Every worker serves it in a separate host, in addition to its configured apps. Authors do not need
to include it, and their code cannot bring it down.
"""

from collections.abc import Iterable
from typing import Final

from headwater.streams.code_host.schedule_runner import ScheduleRunner
from headwater.streams.replay.workflow import Workflow

#: Its name in lists of apps.
BUILTIN_APP: Final = "headwater"


def builtin_workflows(schedules: Iterable[str]) -> dict[str, Workflow]:
    """Return the built-in workflows by name.

    Args:
        schedules: Names of the schedules that the worker's apps declare.
    """
    return {workflow.name: workflow for workflow in (ScheduleRunner(schedules),)}
