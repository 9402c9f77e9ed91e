"""Keys of jobs: a job's workflow, instance, run, token and attempt as one path segment."""

import re
from typing import Final

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.processors.runs.limits import INSTANCE_ID_TOP, WORKFLOW_NAME_MAX
from headwater.schemas.failures import JOB_NOT_FOUND
from headwater.schemas.history import Attempt

#: The dot separates the parts; names have none.
_KEY: Final = re.compile(
    rf"([\w-]{{1,{WORKFLOW_NAME_MAX}}})\.([\w-]{{1,{INSTANCE_ID_TOP}}})"
    r"\.(\d{1,9})\.(\d{1,9})\.(\d{1,9})",
    re.ASCII,
)
#: Characters of the longest key.
KEY_MAX: Final = WORKFLOW_NAME_MAX + INSTANCE_ID_TOP + 31


class JobKey(msgspec.Struct, frozen=True):
    """Identity of a job: an attempt of an instance."""

    workflow: str
    instance_id: str
    attempt: Attempt

    @property
    def text(self) -> str:
        """Format of the key in the API."""
        numbers = (self.attempt.run_number, self.attempt.token, self.attempt.number)
        return ".".join((self.workflow, self.instance_id, *map(str, numbers)))


def read_key(text: str) -> JobKey:
    """Parse a key.

    Raises:
        Problem: The text is not the key of a job.
    """
    match = _KEY.fullmatch(text)
    if match is None:
        raise Problem(
            JOB_NOT_FOUND,
            f"expected the key of a job, as its activation returned it, found {text[:60]!r}",
        )
    return JobKey(match[1], match[2], Attempt(int(match[3]), int(match[4]), int(match[5])))
