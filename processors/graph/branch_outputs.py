"""Replace the output of a branch of a failed run, so that a retry can merge it."""

from headwater.processors.graph.state import GraphRun, branch_key
from headwater.processors.input_texts import JsonInvalid, read_json, wide_integer_problem
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.limits import DEFAULT_LIMITS, bounded, value_problem
from headwater.schemas.failures import BRANCH_NOT_FOUND, INSTANCE_NOT_ERRORED, INVALID_PARAMS
from headwater.schemas.history import BranchOutputSet, SetBranchOutput
from headwater.schemas.statuses import RunStatus


def set_branch_output(run: GraphRun, command: SetBranchOutput) -> Decision:
    """Decide the replacement of a branch's output."""
    if run.status is not RunStatus.ERRORED:
        return Rejection(
            INSTANCE_NOT_ERRORED,
            f"expected an errored instance, found {run.instance_id} {run.status}: only a run that "
            "has failed waits for its outputs to be changed",
        )
    problem = _output_problem(run, command)
    if problem:
        return Rejection(INVALID_PARAMS, bounded(problem))
    forks = [name for name, fork in run.forks.items() if fork.group == command.group]
    if command.fork is not None:
        forks = [name for name in forks if name == command.fork]
    if len(forks) != 1:
        known = ", ".join(map(repr, forks)) or "none"
        hint = "; name one of them" if forks else ""
        message = f"expected one fork of {command.group!r} that waits, found {known}{hint}"
        return Rejection(BRANCH_NOT_FOUND, bounded(message))
    name = forks[0]
    if branch_key(name, command.branch) not in run.branches:
        total = run.forks[name].total
        return Rejection(
            BRANCH_NOT_FOUND,
            f"branch: expected 0 to {total - 1}, a branch of {name!r}, found {command.branch}",
        )
    return [BranchOutputSet(name, command.branch, command.output)]


def _output_problem(run: GraphRun, command: SetBranchOutput) -> str | None:
    limits = run.limits or DEFAULT_LIMITS
    problem = value_problem("output", command.output, limits.max_result_bytes, "max_result_bytes")
    if problem:
        return problem
    try:
        value = read_json(command.output)
    except JsonInvalid as error:
        return f"output: expected JSON, found: {error}"
    if not isinstance(value, dict):
        return "output: expected an object with its fields"
    return wide_integer_problem(command.output, "output")
