"""Jobs: attempts of tasks that external workers execute, driven by commands to the instance.

An external node is dispatched as a job; the first worker that activates it gets a lease. An attempt
number is used once: after an expired lease or a failed attempt, the next attempt has another
number. So the number identifies the holder, and late requests of earlier workers have no effect.
The end of an attempt is remembered for a while, because a worker that got no response repeats its
request.
"""

from headwater.processors.graph.advancing import act_and_advance, complete, fail_attempt
from headwater.processors.graph.draft import Draft
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import Lease, LiveToken, digest_of_end
from headwater.processors.graph.timing import policy_of
from headwater.processors.input_texts import JsonInvalid, read_json
from headwater.processors.runs.decisions import Decision, Rejection, retry_at_ms
from headwater.processors.runs.limits import (
    DEFAULT_LIMITS,
    FAILURE_MESSAGE_MAX,
    FAILURE_NAME_MAX,
    SLEEP_MAX_MS,
    bounded,
    value_problem,
)
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
    OutcomeHeld,
)
from headwater.schemas.statuses import RunStatus


def decide_job(draft: Draft, command: JobCommand, sent_at_ms: int) -> Decision:
    """Decide about a worker's command."""
    token = _token_of_job(draft, command)
    if isinstance(token, Rejection):
        return token
    if isinstance(command, ActivateJob):
        return _activate(draft, token, command, sent_at_ms)
    is_late = token.lease is None or command.attempt.number != token.attempts + 1
    if token.lease is None or is_late or _ran_out_in_pause(draft, token.lease, sent_at_ms):
        return _lost(token, command.attempt)
    match command:
        case CompleteJob():
            return _complete(draft, token, command.output, min(sent_at_ms, draft.now_ms))
        case FailJob():
            return _fail(draft, token, command, min(sent_at_ms, draft.now_ms))
        case ExtendJob():
            return _extend(token, token.lease, sent_at_ms + command.lease_ms)


# -- whether the job is still open


def _token_of_job(draft: Draft, command: JobCommand) -> LiveToken | Rejection:
    """Return the token of a job command, or a rejection if the job is over."""
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


def _ran_out_in_pause(draft: Draft, lease: Lease, sent_at_ms: int) -> bool:
    """Whether a lease ran out during a pause, which is recorded only after it."""
    return draft.run.holds_outcomes and sent_at_ms > lease.until_ms


def _unknown(attempt: Attempt) -> Rejection:
    return Rejection(
        failures.JOB_NOT_FOUND,
        f"expected a job of token {attempt.token} in run {attempt.run_number}, found none",
    )


def _ended(command: JobCommand, digest: str) -> Rejection:
    """Return the rejection for a request after the attempt ended."""
    match command:
        case CompleteJob():
            request_digest = digest_of_end(command.output)
        case FailJob():
            failure = _bounded(command.failure)
            request_digest = digest_of_end(failure.name, failure.message)
        case _:
            request_digest = ""
    if request_digest == digest:
        return Rejection(failures.JOB_END_REPEATED, "the attempt ended the same way before")
    return Rejection(
        failures.JOB_ALREADY_ENDED, "the attempt has ended already, and not with what was sent now"
    )


def _lost(token: LiveToken, attempt: Attempt) -> Rejection:
    current = token.attempts + 1
    if token.lease is not None:
        actual = f'attempt {current}, held by "{token.lease.worker}"'
    elif token.status is TokenStatus.PENDING:
        actual = f"that attempt {current} is not due yet"
    else:
        actual = f"attempt {current}, which no worker holds"
    return Rejection(
        failures.JOB_LEASE_LOST,
        f"expected attempt {attempt.number} to be under way, found {actual}; usual cause: the "
        "lease expired before it was extended",
    )


# -- commands


def _activate(draft: Draft, token: LiveToken, command: ActivateJob, sent_at_ms: int) -> Decision:
    attempt, until_ms = token.attempts + 1, sent_at_ms + command.lease_ms
    problem = None
    if draft.run.status is RunStatus.PAUSED:
        problem = "its run is paused"
    elif token.status is not TokenStatus.DISPATCHED or command.attempt.number != attempt:
        problem = f"its attempt {attempt} is {token.status}"
    elif until_ms <= draft.now_ms:
        problem = "the lease would be over already; do the clocks of gateway and worker agree?"
    if problem is not None:
        return Rejection(failures.JOB_NOT_AVAILABLE, problem)
    limit_ms = draft.graph.node(token.node).timeout_ms
    ends_at_ms = draft.now_ms + limit_ms if limit_ms else None
    until_ms = until_ms if ends_at_ms is None else min(until_ms, ends_at_ms)
    return [JobActivated(token.number, attempt, command.worker, until_ms, ends_at_ms)]


def _complete(draft: Draft, token: LiveToken, output: Json, at_ms: int) -> Decision:
    limits = draft.run.limits or DEFAULT_LIMITS
    problem = value_problem(
        "the output of a job", output, limits.max_result_bytes, "max_result_bytes"
    )
    try:
        read_json(output)
    except JsonInvalid as error:
        problem = f"expected JSON as the output of a job, found: {error}"
    if problem:
        return Rejection(failures.JOB_OUTPUT_INVALID, bounded(problem))
    if draft.run.holds_outcomes:
        return [OutcomeHeld(token.number, at_ms, output)]
    return act_and_advance(draft, lambda draft: complete(draft, token, output))


def _fail(draft: Draft, token: LiveToken, command: FailJob, at_ms: int) -> Decision:
    failure, attempt = _bounded(command.failure), token.attempts + 1
    retry_ms = None
    if command.retryable:
        policy = policy_of(draft.graph, token)
        retry_ms = retry_at_ms(policy, attempt - token.lost, draft.now_ms)
    if retry_ms is not None and command.retry_after_ms is not None:
        retry_ms = draft.now_ms + min(command.retry_after_ms, SLEEP_MAX_MS)

    if draft.run.holds_outcomes:
        return [OutcomeHeld(token.number, at_ms, None, failure, retry_ms)]
    return act_and_advance(draft, lambda draft: fail_attempt(draft, token, failure, retry_ms))


def _bounded(failure: Failure) -> Failure:
    return Failure(
        bounded(failure.name, FAILURE_NAME_MAX), bounded(failure.message, FAILURE_MESSAGE_MAX)
    )


def _extend(token: LiveToken, lease: Lease, until_ms: int) -> Decision:
    """Extend a lease: it never gets shorter, and never extends beyond the attempt's timeout."""
    until_ms = max(until_ms, lease.until_ms)
    if lease.ends_at_ms is not None:
        until_ms = min(until_ms, lease.ends_at_ms)
    return [JobExtended(token.number, token.attempts + 1, lease.worker, until_ms)]
