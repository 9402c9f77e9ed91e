"""Answers about runs below `/v1`: instances, in the vocabulary of programs that run elsewhere."""

from datetime import datetime
from typing import Annotated, Any

from headwater.schemas.answers import Answer, Failure, means
from headwater.schemas.statuses import RunState


class RunCreated(Answer, frozen=True, kw_only=True):
    """A run that was created."""

    run_id: str
    workflow_name: str
    status: RunState
    deployment_id: Annotated[str | None, means("What it runs on; none if it follows the code.")] = (
        None
    )


class RunListed(RunCreated, frozen=True, kw_only=True):
    """A run in a listing."""

    created_at: datetime
    started_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    error: Failure | None = None


class Run(RunListed, frozen=True, kw_only=True):
    """A run with all details."""

    input: Annotated[Any, means("What it was started with.")]
    output: Annotated[Any, means("What the workflow returned.")] = None


class RunPage(Answer, frozen=True, kw_only=True):
    """Runs, the newest first, without their inputs and outputs."""

    data: list[RunListed]
    cursor: Annotated[str | None, means("Where the next page begins.")]
    has_more: bool


class MessagePublished(Answer, frozen=True, kw_only=True):
    """A message that is in its queue."""

    message_id: Annotated[str, means("The id of its run.")]
    deduped: Annotated[bool, means("Whether it was there already.")]


class EventCreated(Answer, frozen=True, kw_only=True):
    """An event of a run that was accepted."""

    run_id: str
    event_type: str
    deduped: Annotated[bool, means("Whether it was accepted before.")]
