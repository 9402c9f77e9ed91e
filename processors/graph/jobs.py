"""Jobs: attempts of tasks that workers outside take, by commands of the instance.

A node that is external is dispatched as a job, and whoever activates it first has it for a lease.
An attempt is given once: when a lease runs out, or an attempt fails, the next attempt has another
number. So the number says whose the job is, and what an earlier worker sends changes nothing.
How an attempt ended is kept for a while: a worker that was not answered may say it once more.
"""

from headwater.processors.graph.advancing import complete
from headwater.processors.graph.decide import follow, policy_of
from headwater.processors.graph.draft import Draft
from headwater.processors.graph.ends import fail
from headwater.processors.graph.state import Lease, LiveToken, digest_of_end
from headwater.processors.graph.tokens import TokenStatus
from headwater.processors.json_texts import JsonInvalid, read_json
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.limits import (
    DEFAULT_LIMITS,
    FAILURE_MESSAGE_MAX,
    FAILURE_NAME_MAX,
    SLEEP_MAX_MS,
    bounded,
    value_problem,
)
from headwater.processors.runs.retries import retry_at_ms
from headwater.schemas import failures
from headwater.schemas.history import (
    ActivateJob,
    Attempt,
    CompleteJob,
    ExtendJob,
    FailJob,
    Failure,
    JobActivated,
    JobCommand,
    JobExtended,
    Json,
    TokenFailed,
)
from headwater.schemas.statuses import RunStatus


def decide_job(draft: Draft, command: JobCommand, sent_at_ms: int) -> Decision:
    """Decides what a worker asks for."""
    token = _found(draft, command)
    if isinstance(token, Rejection):
        return token
    if isinstance(command, ActivateJob):
        return _activate(draft, token, command, sent_at_ms)
    if token.lease is None or command.attempt.number != token.attempts + 1:
        return _lost(token, command.attempt)
    match command:
        case CompleteJob():
            return _complete(draft, token, command.output)
        case FailJob():
            return _fail(draft, token, command)
        case ExtendJob():
            return _extend(token, token.lease, sent_at_ms + command.lease_ms)


# -- whether it is still wanted


def _found(draft: Draft, command: JobCommand) -> LiveToken | Rejection:
    """The token that a command is about, unless that is over."""
    run, attempt = draft.run, command.attempt
    if attempt.run_number < run.run_number:
        return Rejection(failures.JOB_CANCELLED, "another run of its instance has begun since")
    if attempt.run_number > run.run_number or attempt.token >= run.created:
        return _unknown(attempt)
    ended = run.ended_jobs.get(attempt.token)
    if ended is not None and ended.attempt == attempt.number:
        return _ended(command, ended.digest)
    if run.ended:
        return Rejection(failures.JOB_CANCELLED, f"its run has ended; it is {run.status}")
    token = run.tokens.get(attempt.token)
    if token is None:
        return Rejection(failures.JOB_CANCELLED, "its token has ended, or was cancelled")
    return _unknown(attempt) if token.job is None else token


def _unknown(attempt: Attempt) -> Rejection:
    return Rejection(
        failures.JOB_NOT_FOUND,
        f"expected a job of token {attempt.token} in run {attempt.run_number}, found none",
    )


def _ended(command: JobCommand, digest: str) -> Rejection:
    """The refusal of what comes after the end of an attempt: the same end, or something else."""
    match command:
        case CompleteJob():
            said = digest_of_end(command.output)
        case FailJob():
            failure = _bounded(command.failure)
            said = digest_of_end(failure.name, failure.message)
        case _:
            said = ""
    if said == digest:
        return Rejection(failures.JOB_END_REPEATED, "the attempt has ended so before")
    return Rejection(
        failures.JOB_ALREADY_ENDED, "the attempt has ended already, and not with what was sent now"
    )


def _lost(token: LiveToken, attempt: Attempt) -> Rejection:
    current = token.attempts + 1
    if token.lease is not None:
        now = f'attempt {current}, which "{token.lease.worker}" has'
    elif token.status is TokenStatus.PENDING:
        now = f"that attempt {current} is still to come"
    else:
        now = f"attempt {current}, which nobody has taken"
    return Rejection(
        failures.JOB_LEASE_LOST,
        f"expected attempt {attempt.number} to be under way, found {now}; usual cause: the lease "
        "ran out before it was extended",
    )


# -- what is asked


def _activate(draft: Draft, token: LiveToken, command: ActivateJob, sent_at_ms: int) -> Decision:
    attempt, until_ms = token.attempts + 1, sent_at_ms + command.lease_ms
    fault = None
    if draft.run.status is RunStatus.PAUSED:
        fault = "its run is paused"
    elif token.status is not TokenStatus.DISPATCHED or command.attempt.number != attempt:
        fault = f"its attempt {attempt} is {token.status}"
    elif until_ms <= draft.now_ms:
        fault = "the lease would be over already; do the clocks of gateway and worker agree?"
    if fault is not None:
        return Rejection(failures.JOB_NOT_AVAILABLE, fault)
    limit_ms = draft.graph.node(token.node).timeout_ms
    ends_at_ms = draft.now_ms + limit_ms if limit_ms else None
    until_ms = until_ms if ends_at_ms is None else min(until_ms, ends_at_ms)
    return [JobActivated(token.number, attempt, command.worker, until_ms, ends_at_ms)]


def _complete(draft: Draft, token: LiveToken, output: Json) -> Decision:
    limits = draft.run.limits or DEFAULT_LIMITS
    fault = value_problem(
        "the output of a job", output, limits.max_result_bytes, "max_result_bytes"
    )
    try:
        read_json(output)
    except JsonInvalid as error:
        fault = f"expected JSON as the output of a job, found: {error}"
    if fault:
        return Rejection(failures.JOB_OUTPUT_INVALID, bounded(fault))
    return follow(draft, lambda draft: complete(draft, token, output))


def _fail(draft: Draft, token: LiveToken, command: FailJob) -> Decision:
    failure, attempt = _bounded(command.failure), token.attempts + 1
    again = None
    if command.retryable:
        policy = policy_of(draft.graph, token)
        again = retry_at_ms(policy, attempt - token.lost, draft.now_ms)
    if again is not None and command.retry_after_ms is not None:
        again = draft.now_ms + min(command.retry_after_ms, SLEEP_MAX_MS)

    def failing(draft: Draft) -> None:
        draft.emit(TokenFailed(token.number, attempt, failure, again))
        if again is None:
            fail(draft, failure, (token.number,))

    return follow(draft, failing)


def _bounded(failure: Failure) -> Failure:
    return Failure(
        bounded(failure.name, FAILURE_NAME_MAX), bounded(failure.message, FAILURE_MESSAGE_MAX)
    )


def _extend(token: LiveToken, lease: Lease, until_ms: int) -> Decision:
    """No lease gets shorter, and none goes beyond the time of the attempt."""
    until_ms = max(until_ms, lease.until_ms)
    if lease.ends_at_ms is not None:
        until_ms = min(until_ms, lease.ends_at_ms)
    return [JobExtended(token.number, token.attempts + 1, lease.worker, until_ms)]
