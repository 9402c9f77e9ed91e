"""Requests of external workers: keys of jobs in paths, and bodies."""

import re
from typing import Annotated, Final, TypeAlias

import msgspec
from typing_extensions import override

from headwater.gateway.api.json_bodies import invalid
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.bodies import Body, check_value, null
from headwater.gateway.settings.patterns import NAME
from headwater.processors.runs.limits import (
    FAILURE_MESSAGE_MAX,
    FAILURE_NAME_MAX,
    INSTANCE_ID_TOP,
    SLEEP_MAX_MS,
    WORKFLOW_NAME_MAX,
)
from headwater.schemas.failures import JOB_NOT_FOUND, JOB_OUTPUT_INVALID
from headwater.schemas.history import Attempt, Limits

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


# -- bodies

#: Jobs of one response: a worker that needs more requests again, and leaves some to others.
JOBS_MAX: Final = 100
TYPES_MAX: Final = 100
WORKER_MAX: Final = 128
#: Bounds of a lease. A shorter one would expire during a short pause of the worker; a longer one
#: would delay the next attempt too much when the worker is lost.
LEASE_MIN_MS: Final = 1_000
LEASE_MAX_MS: Final = 86_400_000
LEASE_DEFAULT_MS: Final = 60_000
#: Many proxies close a connection that is idle for 60 s.
WAIT_MAX_MS: Final = 55_000

_Type: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=WORKFLOW_NAME_MAX, pattern=NAME)
]
_Lease: TypeAlias = Annotated[
    int,
    msgspec.Meta(ge=LEASE_MIN_MS, le=LEASE_MAX_MS, description="Milliseconds, from now."),
]

_Later: TypeAlias = Annotated[
    int,
    msgspec.Meta(
        ge=0, le=SLEEP_MAX_MS, description="Delay of the next attempt; by default that of its node."
    ),
]


class Activation(Body, frozen=True, kw_only=True):
    """Request of a worker for jobs."""

    types: Annotated[
        tuple[_Type, ...],
        msgspec.Meta(min_length=1, max_length=TYPES_MAX, description="Tasks of external nodes."),
    ]
    worker: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=WORKER_MAX, description="Name of the worker, for people."
        ),
    ]
    max: Annotated[int, msgspec.Meta(ge=1, le=JOBS_MAX, description="Maximum number of jobs.")] = 1
    lease_ms: _Lease = LEASE_DEFAULT_MS
    wait_ms: Annotated[
        int,
        msgspec.Meta(ge=0, le=WAIT_MAX_MS, description="How long to wait if there are none."),
    ] = 0


class Completion(Body, frozen=True, kw_only=True):
    """The result of a job."""

    output: Annotated[
        msgspec.Raw, msgspec.Meta(description="Any JSON, of at most 1 MiB; null by default.")
    ] = null

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        check_value(JOB_OUTPUT_INVALID, f"{at}output", self.output)


class JobError(Body, frozen=True, kw_only=True):
    """Error of a failed attempt."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=FAILURE_NAME_MAX)] = "Error"
    message: Annotated[str, msgspec.Meta(max_length=FAILURE_MESSAGE_MAX)]


class JobFailure(Body, frozen=True, kw_only=True):
    """A failed attempt of a job."""

    error: JobError
    retryable: Annotated[
        bool,
        msgspec.Meta(
            description="false: it is not retried, whatever the retry policy of its node."
        ),
    ] = True
    retry_after_ms: _Later | None = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if self.retry_after_ms is not None and not self.retryable:
            raise invalid(
                f"{at}retryAfterMs", "expected it only with retryable true, found retryable false"
            )


class Extension(Body, frozen=True, kw_only=True):
    """Extension of a job's lease."""

    lease_ms: _Lease = LEASE_DEFAULT_MS
