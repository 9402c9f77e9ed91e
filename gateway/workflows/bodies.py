"""Bodies of requests, as structs; every fault is a problem that names its place.

The values of authors stay the JSON text that they came as. What must not be in them (names twice,
NaN, numbers beyond every float, text that is no Unicode) is looked for all the same: the code that
gets them is far from who sent them.
"""

import json
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from typing_extensions import override

from headwater.gateway.http.json_bodies import check_json, decoded, invalid
from headwater.gateway.http.problems import Problem
from headwater.gateway.patterns import NAME
from headwater.processors.runs.labels import labels_fault
from headwater.processors.runs.limits import (
    BATCH_MAX,
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    REASON_MAX,
    STEP_KEY_MAX,
    TICK_MAX,
    USUAL,
    VALUE_BYTES_TOP,
    name_fault,
    value_fault,
)
from headwater.schemas.failures import (
    INVALID_EVENT_PAYLOAD,
    INVALID_EVENT_TYPE,
    INVALID_INSTANCE_ID,
    INVALID_LABELS,
    INVALID_PARAMS,
)
from headwater.schemas.history import Command, Json, Limits, RetryRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.steering import VERBS

#: Characters of a cursor; ours have some sixty.
CURSOR_MAX: Final = 1_024
#: What can be done to many instances at a time, as may be repeated: all but to begin them anew.
BULK: Final[dict[str, Command]] = {
    "retry": RetryRun(),
    **{verb.name: verb.command for verb in VERBS if verb.repeatable},
}
_ENDING: Final = {verb.name: verb for verb in VERBS if verb.takes_reason}

B = TypeVar("B", bound="Body")


def _name(longest: int, description: str) -> msgspec.Meta:
    # Described alone: faults in names have codes of their own.
    described = {"min_length": 1, "max_length": longest, "pattern": NAME}
    return msgspec.Meta(description=description, extra_json_schema={"extra": described})


null: Final = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
Value: TypeAlias = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        description="Any JSON, of at most 1 MiB unless a setting says otherwise; null by default."
    ),
]
_Labels: TypeAlias = Annotated[
    dict[str, str],
    msgspec.Meta(description="Texts by which it is found, by name: at most 16."),
]
_absent: Final = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
#: A token, node or transition of a graph, which is looked for later.
_Ref: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=TICK_MAX)]


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of what requests bring."""

    def check(self, limits: Limits, at: str = "") -> None:
        """Refuses what a type cannot say; `at` is where in the body this lies.

        Errors: Problem.
        """


class NoFields(Body, frozen=True, kw_only=True):
    """Nothing."""


class Ending(Body, frozen=True, kw_only=True):
    """Why an instance is ended."""

    reason: Annotated[
        str, msgspec.Meta(max_length=REASON_MAX, description="For people; its error says it.")
    ] = ""


class NewInstance(Body, frozen=True, kw_only=True):
    """An instance to be created."""

    id: Annotated[str | None, _name(INSTANCE_ID_MAX, "Unique in the workflow; made if absent.")] = (
        None
    )
    params: Value = null
    labels: _Labels = {}

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if self.id is not None:
            fault = name_fault("an instance id", self.id, limits.max_instance_id, "max_instance_id")
            _refuse(INVALID_INSTANCE_ID, f"{at}id", fault)
        check_params(f"{at}params", self.params, limits)
        _check_labels(f"{at}labels", self.labels)


class NamedInstance(NewInstance, frozen=True, kw_only=True):
    """An instance to be created, of a batch."""

    id: Annotated[str, _name(INSTANCE_ID_MAX, "Unique in the workflow.")]


class NewInstances(Body, frozen=True, kw_only=True):
    """Instances to be created; of several with one id, the first."""

    instances: Annotated[
        tuple[NamedInstance, ...], msgspec.Meta(min_length=1, max_length=BATCH_MAX)
    ]

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        for number, instance in enumerate(self.instances):
            instance.check(limits, f"{at}instances[{number}].")

    def unique_instances(self) -> list[NamedInstance]:
        """Return the instances without those whose id came before."""
        first: dict[str, NamedInstance] = {}
        for each in self.instances:
            first.setdefault(each.id, each)
        return list(first.values())


class StartIfMissing(Body, frozen=True, kw_only=True):
    """What an instance begins with that an event may create."""

    params: Value = null
    labels: _Labels = {}


class NewEvent(Body, frozen=True, kw_only=True):
    """An event to be sent."""

    type: Annotated[str, _name(EVENT_TYPE_MAX, "What a workflow waits for.")]
    payload: Value = null
    start_if_missing: Annotated[
        StartIfMissing | None,
        msgspec.Meta(
            description="Begins the instance, if there is none, with the event in its mailbox."
        ),
    ] = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        fault = name_fault("an event type", self.type, limits.max_event_type, "max_event_type")
        _refuse(INVALID_EVENT_TYPE, f"{at}type", fault)
        most = limits.max_event_bytes
        fault = value_fault(f"{at}payload", text(self.payload), most, "max_event_bytes")
        _refuse(INVALID_EVENT_PAYLOAD, f"{at}payload", fault)
        if self.start_if_missing is not None:
            start = self.start_if_missing
            check_params(f"{at}startIfMissing.params", start.params, limits)
            _check_labels(f"{at}startIfMissing.labels", start.labels)


class Retry(Body, frozen=True, kw_only=True):
    """From where an instance is tried again."""

    from_step: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=STEP_KEY_MAX)] | None,
        msgspec.Meta(
            description="Key of the first step that is done again; by default the one that failed."
        ),
    ] = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if "\0" in (self.from_step or ""):
            raise invalid(f"{at}fromStep", "expected a step's key without NUL")


class BulkChange(Ending, frozen=True, kw_only=True):
    """What is done to all instances of a workflow that have a status, or labels; if ended, why."""

    action: Annotated[
        str, msgspec.Meta(description=f"One of {', '.join(BULK)}.", extra={"one_of": list(BULK)})
    ]
    status: RunStatus | None = None
    labels: _Labels = {}
    dry_run: Annotated[
        bool, msgspec.Meta(description="Only says which they are; nothing is done to them.")
    ] = False
    page_size: Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)] = BATCH_MAX
    cursor: Annotated[str, msgspec.Meta(min_length=1, max_length=CURSOR_MAX)] | None = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if self.action not in BULK:
            found = f"expected one of {', '.join(BULK)}, found {self.action[:60]!r}"
            raise invalid(f"{at}action", found)
        if self.status is None and not self.labels:
            raise invalid(f"{at}status", "expected a status or labels, found neither")
        if self.reason and self.action not in _ENDING:
            found = f"expected none with {self.action}, found one: {' and '.join(_ENDING)} take it"
            raise invalid(f"{at}reason", found)
        _check_labels(f"{at}labels", self.labels)

    def command(self) -> Command:
        """What each of them is told."""
        if self.action in _ENDING:
            return _ENDING[self.action].because(self.reason)
        return BULK[self.action]


class RoutingSimulation(Body, frozen=True, kw_only=True):
    """A token, or a node, and the output with which it would complete."""

    token: _Ref | None = None
    node: _Ref | None = None
    output: Annotated[
        msgspec.Raw, msgspec.Meta(description="Any JSON; without it nothing is mapped.")
    ] = _absent

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        if (self.token is None) is (self.node is None):
            raise invalid(f"{at}token", "expected a token or a node, found both or neither")
        if self.output:
            check_value("invalid_body", f"{at}output", self.output)


class SynchronizationSimulation(Body, frozen=True, kw_only=True):
    """A token, and the transition by which it would come to where branches meet."""

    token: _Ref
    transition: _Ref


class Tick(Body, frozen=True, kw_only=True, omit_defaults=True):
    """How much a worker is to do; by default as much as there is."""

    max_instances: _Count | None = None
    max_steps: _Count | None = None


class WorkerTick(Tick, frozen=True, kw_only=True):
    """What the gateway asks of one of several workers: all, or only instances that go on."""

    continuing: bool = False


def read(kind: type[B], body: bytes, limits: Limits = USUAL) -> B:
    """Reads a body; no body at all is one without fields.

    Errors: Problem.
    """
    if not body.strip():
        body = b"{}"
    check_json(body)
    return read_part(kind, msgspec.Raw(body), limits)


def read_part(kind: type[B], part: msgspec.Raw, limits: Limits, at: str = "") -> B:
    """Reads a part of a body that is known to be JSON; `at` is where in the body it lies.

    Errors: Problem.
    """
    found = decoded(kind, part, at)
    found.check(limits, at)
    return found


def text(value: msgspec.Raw) -> Json:
    """A value of an author's, as it came."""
    return bytes(value).decode()


def generic(value: msgspec.Raw) -> Any:  # noqa: ANN401 (any JSON value)
    """A value as Python has it, for hooks; it is known to be JSON."""
    return json.loads(bytes(value))


def check_value(code: str, field: str, value: msgspec.Raw) -> None:
    """Refuses a value that no setting allows; the owner of its run knows what that one does.

    Errors: Problem.
    """
    _refuse(code, field, value_fault(field, text(value), VALUE_BYTES_TOP))


def check_params(field: str, params: msgspec.Raw, limits: Limits) -> None:
    """Refuses what an instance cannot begin with.

    Errors: Problem.
    """
    fault = value_fault(field, text(params), limits.max_params_bytes, "max_params_bytes")
    _refuse(INVALID_PARAMS, field, fault)


def _check_labels(field: str, labels: dict[str, str]) -> None:
    fault = labels_fault(labels)
    _refuse(INVALID_LABELS, field, fault and f"{field}: {fault}")


def _refuse(code: str, field: str, fault: str | None) -> None:
    """Refuses a field that has a fault.

    Errors: Problem.
    """
    if fault:
        raise Problem(code, fault, field=field)
