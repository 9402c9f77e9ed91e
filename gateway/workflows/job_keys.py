"""Keys of jobs: which attempt of which token, as one word of a path."""

import re
from typing import Final

import msgspec

from headwater.gateway.http.problems import Problem
from headwater.processors.runs.limits import INSTANCE_ID_TOP, WORKFLOW_NAME_MAX
from headwater.schemas.failures import JOB_NOT_FOUND
from headwater.schemas.history import Attempt

#: Names have no dot.
_KEY: Final = re.compile(
    rf"([\w-]{{1,{WORKFLOW_NAME_MAX}}})\.([\w-]{{1,{INSTANCE_ID_TOP}}})"
    r"\.(\d{1,9})\.(\d{1,9})\.(\d{1,9})",
    re.ASCII,
)
#: Characters of the longest key.
KEY_MAX: Final = WORKFLOW_NAME_MAX + INSTANCE_ID_TOP + 31


class JobKey(msgspec.Struct, frozen=True):
    """Which job: an attempt, and whose."""

    workflow: str
    instance_id: str
    attempt: Attempt

    @property
    def text(self) -> str:
        """As a worker has it."""
        numbers = (self.attempt.run_number, self.attempt.token, self.attempt.number)
        return ".".join((self.workflow, self.instance_id, *map(str, numbers)))


def read_key(text: str) -> JobKey:
    """Reads a key.

    Errors: Problem.
    """
    found = _KEY.fullmatch(text)
    if found is None:
        fault = f"expected the key of a job, as it was activated with, found {text[:60]!r}"
        raise Problem(JOB_NOT_FOUND, fault)
    return JobKey(found[1], found[2], Attempt(int(found[3]), int(found[4]), int(found[5])))
