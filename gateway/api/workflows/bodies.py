"""Request bodies as structs. A validation error is a problem that names the field.

Values of workflow authors stay JSON text. They are checked for duplicate names, NaN, numbers that
no float can hold and invalid Unicode, because the code that would fail on them runs much later.
"""

import json
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from typing_extensions import override

from headwater.gateway.api.json_bodies import check_json, decoded, invalid
from headwater.gateway.api.problems import Problem
from headwater.gateway.settings.patterns import NAME
from headwater.processors.graph.validation import BRANCHES_MAX, NAME_MAX
from headwater.processors.runs.lifecycle import ACTIONS, MOVE
from headwater.processors.runs.limits import (
    BATCH_MAX,
    DEFAULT_LIMITS,
    DEPLOYMENT_MAX,
    EVENT_TYPE_MAX,
    FAILURE_NAME_MAX,
    INSTANCE_ID_MAX,
    REASON_MAX,
    STEP_KEY_MAX,
    TICK_MAX,
    VALUE_BYTES_TOP,
    labels_problem,
    name_problem,
    value_problem,
)
from headwater.schemas.failures import (
    INVALID_EVENT_PAYLOAD,
    INVALID_EVENT_TYPE,
    INVALID_INSTANCE_ID,
    INVALID_LABELS,
    INVALID_PARAMS,
)
from headwater.schemas.history import Command, Json, Limits, SetBranchOutput
from headwater.schemas.statuses import RunStatus

#: Most characters of a cursor; real ones have about sixty.
CURSOR_MAX: Final = 1_024
_BULK: Final = {action.name: action for action in (*ACTIONS, MOVE) if action.bulk}

B = TypeVar("B", bound="Body")


def _name(longest: int, description: str) -> msgspec.Meta:
    # Only described here: invalid names have error codes of their own.
    described = {"min_length": 1, "max_length": longest, "pattern": NAME}
    return msgspec.Meta(description=description, extra_json_schema={"extra": described})


null: Final = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
_Deployment: TypeAlias = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=DEPLOYMENT_MAX)] | None,
    msgspec.Meta(
        description="Where the run begins: same, active, app, or the id of a deployment. By "
        "default a retry stays on the same, and a restart begins on the active one."
    ),
]
Value: TypeAlias = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        description="Any JSON, at most 1 MiB unless a setting changes it; null by default."
    ),
]
_Labels: TypeAlias = Annotated[
    dict[str, str],
    msgspec.Meta(description="Texts to filter instances by, by name; at most 16."),
]
_absent: Final = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
#: A token, node or transition of a graph; its existence is checked later.
_Ref: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=TICK_MAX)]


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of request bodies."""

    def check(self, limits: Limits, at: str = "") -> None:
        """Check what the types do not express.

        Args:
            limits: Limits of the deployment.
            at: Path of this part within the body, as a prefix of field names.

        Raises:
            Problem: A field is invalid.
        """


class NoFields(Body, frozen=True, kw_only=True):
    """A body without fields."""


class Ending(Body, frozen=True, kw_only=True):
    """Reason why an instance is ended."""

    reason: Annotated[
        str,
        msgspec.Meta(
            max_length=REASON_MAX, description="For people; part of the error of the instance."
        ),
    ] = ""


class NewInstance(Body, frozen=True, kw_only=True):
    """An instance to be created."""

    id: Annotated[
        str | None, _name(INSTANCE_ID_MAX, "Unique in the workflow; generated if absent.")
    ] = None
    params: Value = null
    labels: _Labels = {}

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if self.id is not None:
            problem = name_problem(
                "an instance id", self.id, limits.max_instance_id, "max_instance_id"
            )
            _refuse(INVALID_INSTANCE_ID, f"{at}id", problem)
        check_params(f"{at}params", self.params, limits)
        _check_labels(f"{at}labels", self.labels)


class NamedInstance(NewInstance, frozen=True, kw_only=True):
    """An instance of a batch to be created."""

    id: Annotated[str, _name(INSTANCE_ID_MAX, "Unique in the workflow.")]


class NewInstances(Body, frozen=True, kw_only=True):
    """Instances to be created; of several with the same id, only the first."""

    instances: Annotated[
        tuple[NamedInstance, ...], msgspec.Meta(min_length=1, max_length=BATCH_MAX)
    ]

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        for number, instance in enumerate(self.instances):
            instance.check(limits, f"{at}instances[{number}].")

    def unique_instances(self) -> list[NamedInstance]:
        """Return the instances; of several with the same id, only the first."""
        first: dict[str, NamedInstance] = {}
        for instance in self.instances:
            first.setdefault(instance.id, instance)
        return list(first.values())


class StartIfMissing(Body, frozen=True, kw_only=True):
    """Params and labels of an instance that an event may create."""

    params: Value = null
    labels: _Labels = {}


class NewEvent(Body, frozen=True, kw_only=True):
    """An event to be sent."""

    type: Annotated[str, _name(EVENT_TYPE_MAX, "Event type that a workflow waits for.")]
    payload: Value = null
    start_if_missing: Annotated[
        StartIfMissing | None,
        msgspec.Meta(
            description="Create the instance, if it does not exist, with the event in its mailbox."
        ),
    ] = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        problem = name_problem("an event type", self.type, limits.max_event_type, "max_event_type")
        _refuse(INVALID_EVENT_TYPE, f"{at}type", problem)
        max_bytes = limits.max_event_bytes
        problem = value_problem(f"{at}payload", text(self.payload), max_bytes, "max_event_bytes")
        _refuse(INVALID_EVENT_PAYLOAD, f"{at}payload", problem)
        if self.start_if_missing is not None:
            start = self.start_if_missing
            check_params(f"{at}startIfMissing.params", start.params, limits)
            _check_labels(f"{at}startIfMissing.labels", start.labels)


class Restart(Body, frozen=True, kw_only=True):
    """The deployment on which an instance is restarted."""

    deployment: _Deployment = None


class Forced(Body, frozen=True, kw_only=True):
    """Whether an operation is carried out although runs do not fit the code."""

    force: Annotated[
        bool, msgspec.Meta(description="Continue even if open runs do not fit the code.")
    ] = False
    reason: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_MAX)] | None,
        msgspec.Meta(description="Why, with `force`; the audit log keeps it."),
    ] = None

    def forced(self) -> str:
        """Return the reason of a forced operation; "" if it is not forced.

        Raises:
            Problem: It has `force` or `reason` alone.
        """
        return _forced(self.reason or "", force=self.force)


class Move(Forced, frozen=True, kw_only=True):
    """The code to which a run is moved."""

    deployment: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=DEPLOYMENT_MAX,
            description="Where it continues: active, app, or the id of a deployment.",
        ),
    ]
    dry_run: Annotated[bool, msgspec.Meta(description="Check it; change nothing.")] = False


class Retry(Body, frozen=True, kw_only=True):
    """The step from which an instance is retried, and its deployment."""

    deployment: _Deployment = None
    from_step: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=STEP_KEY_MAX)] | None,
        msgspec.Meta(
            description="Key of the first step to execute again; by default the failed one."
        ),
    ] = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if "\0" in (self.from_step or ""):
            raise invalid(f"{at}fromStep", "expected a step's key without NUL")


class BranchOutput(Body, frozen=True, kw_only=True):
    """The output of a branch that waits at a join of an errored run."""

    group: Annotated[
        str, msgspec.Meta(min_length=1, max_length=NAME_MAX, description="Sibling group.")
    ]
    branch: Annotated[int, msgspec.Meta(ge=0, lt=BRANCHES_MAX, description="The first is 0.")]
    output: Annotated[msgspec.Raw, msgspec.Meta(description="The whole output, a JSON object.")]
    fork: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=2 * NAME_MAX)] | None,
        msgspec.Meta(description="Needed if several forks of the group wait."),
    ] = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        problem = value_problem(
            f"{at}output", text(self.output), limits.max_result_bytes, "max_result_bytes"
        )
        _refuse(INVALID_PARAMS, f"{at}output", problem)

    def command(self) -> SetBranchOutput:
        """Return the command that sets it."""
        return SetBranchOutput(self.group, self.branch, text(self.output), self.fork)


class BulkChange(Ending, frozen=True, kw_only=True):
    """An action for all instances of a workflow with a status or labels."""

    action: Annotated[
        str, msgspec.Meta(description=f"One of {', '.join(_BULK)}.", extra={"one_of": list(_BULK)})
    ]
    status: RunStatus | None = None
    error_name: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=FAILURE_NAME_MAX)] | None,
        msgspec.Meta(description="Only instances with an error of this name."),
    ] = None
    labels: _Labels = {}
    deployment: _Deployment = None
    force: Annotated[
        bool,
        msgspec.Meta(description="With `move` and a `reason`: also runs that do not fit the code."),
    ] = False
    dry_run: Annotated[
        bool, msgspec.Meta(description="Only list the instances; change nothing.")
    ] = False
    page_size: Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)] = BATCH_MAX
    cursor: Annotated[str, msgspec.Meta(min_length=1, max_length=CURSOR_MAX)] | None = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if self.action not in _BULK:
            problem = f"expected one of {', '.join(_BULK)}, found {self.action[:60]!r}"
            raise invalid(f"{at}action", problem)
        if self.status is None and not self.labels:
            raise invalid(f"{at}status", "expected a status or labels, found neither")
        if "\0" in (self.error_name or ""):
            raise invalid(f"{at}errorName", "expected the name of an error without NUL")
        if self.action == MOVE.name and self.deployment is None:
            raise invalid(f"{at}deployment", "expected the code to move to, found none")
        if self.force and self.action != MOVE.name:
            raise invalid(f"{at}force", f"expected none with {self.action}: only move takes it")
        forced = self.forced()
        for name, text in self._arguments(forced).items():
            takers = [action.name for action in _BULK.values() if name in action.arguments]
            if text and self.action not in takers:
                takes = f"{' and '.join(takers)} take{'' if len(takers) > 1 else 's'} it"
                problem = f"expected none with {self.action}, found one: only {takes}"
                raise invalid(f"{at}{name}", problem)
        _check_labels(f"{at}labels", self.labels)

    def forced(self) -> str:
        """Return the reason of a forced move; "" if it is none, or is not forced.

        Raises:
            Problem: A move has `force` or `reason` alone.
        """
        return _forced(self.reason, force=self.force) if self.action == MOVE.name else ""

    def _arguments(self, forced: str = "") -> dict[str, str | None]:
        return {"reason": None if forced else self.reason or None, "deployment": self.deployment}

    def command(self) -> Command:
        """Return the command of the action."""
        action, arguments = _BULK[self.action], self._arguments()
        return action.command_with({name: arguments.get(name) for name in action.arguments})


class Migration(Body, frozen=True, kw_only=True):
    """The version of a graph on which a run continues."""

    to: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1, description="Number of the version.")]
    map: Annotated[
        dict[_Ref, _Ref],
        msgspec.Meta(
            max_length=10_000,
            description="Its nodes by nodes of the run's definition, where the refs differ.",
        ),
    ] = {}


class RoutingSimulation(Body, frozen=True, kw_only=True):
    """Simulated completion of a token, or of a node, with an output."""

    token: _Ref | None = None
    node: _Ref | None = None
    output: Annotated[
        msgspec.Raw, msgspec.Meta(description="Any JSON; without it no output is mapped.")
    ] = _absent

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if (self.token is None) is (self.node is None):
            raise invalid(f"{at}token", "expected a token or a node, found both or neither")
        if self.output:
            check_value("invalid_body", f"{at}output", self.output)


class SynchronizationSimulation(Body, frozen=True, kw_only=True):
    """Simulated arrival of a token at a join by a transition."""

    token: _Ref
    transition: _Ref


class Tick(Body, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a tick; without limits workers execute all that is due."""

    max_instances: _Count | None = None
    max_steps: _Count | None = None


class WorkerTick(Tick, frozen=True, kw_only=True):
    """Tick of one worker; `continuing` restricts it to instances that have begun."""

    continuing: bool = False


def read(kind: type[B], body: bytes, limits: Limits = DEFAULT_LIMITS) -> B:
    """Parse and check a body; an empty one has no fields.

    Raises:
        Problem: The body is invalid.
    """
    if not body.strip():
        body = b"{}"
    check_json(body)
    return read_part(kind, msgspec.Raw(body), limits)


def read_part(kind: type[B], part: msgspec.Raw, limits: Limits, at: str = "") -> B:
    """Parse and check a part of a body that is known to be JSON.

    Args:
        kind: Type of the part.
        part: The JSON.
        limits: Limits of the deployment.
        at: Path of the part within the body, as a prefix of field names.

    Raises:
        Problem: The part is invalid.
    """
    parsed = decoded(kind, part, at)
    parsed.check(limits, at)
    return parsed


def _forced(reason: str, *, force: bool) -> str:
    if force is not bool(reason):
        raise invalid("reason", "expected it with `force`, and not without")
    return reason


def text(value: msgspec.Raw) -> Json:
    """Return the JSON text of a value, unchanged."""
    return bytes(value).decode()


def generic(value: msgspec.Raw) -> Any:  # noqa: ANN401 (any JSON value)
    """Decode a value that is known to be JSON, for hooks."""
    return json.loads(bytes(value))


def check_value(code: str, field: str, value: msgspec.Raw) -> None:
    """Refuse a value larger than any setting allows; the run's owner checks its own limit.

    Raises:
        Problem: The value is too large.
    """
    _refuse(code, field, value_problem(field, text(value), VALUE_BYTES_TOP))


def check_params(field: str, params: msgspec.Raw, limits: Limits) -> None:
    """Refuse invalid params of an instance.

    Raises:
        Problem: The params are invalid.
    """
    problem = value_problem(field, text(params), limits.max_params_bytes, "max_params_bytes")
    _refuse(INVALID_PARAMS, field, problem)


def _check_labels(field: str, labels: dict[str, str]) -> None:
    problem = labels_problem(labels)
    _refuse(INVALID_LABELS, field, problem and f"{field}: {problem}")


def _refuse(code: str, field: str, problem: str | None) -> None:
    """Refuse a field if it has a problem.

    Raises:
        Problem: It has one.
    """
    if problem:
        raise Problem(code, problem, field=field)
