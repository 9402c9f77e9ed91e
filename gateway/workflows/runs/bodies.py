"""Bodies of the routes of runs."""

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from typing_extensions import override

from headwater.gateway.patterns import KEY
from headwater.gateway.workflows.bodies import Body, Ending, Value, check_params, null
from headwater.schemas.history import Limits

#: Characters of a key, as the header has them.
KEY_MAX: Final = 255
_NAME_SHOWN: Final = 1_000

_Deployment: TypeAlias = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None,
    msgspec.Meta(description="The deployment that it is to run on; the active one by default."),
]
_Workflow: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=_NAME_SHOWN, description="The workflow.")
]
_Key: TypeAlias = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_MAX, pattern=KEY)] | None,
    msgspec.Meta(description="What is published again under it is published once, for a day."),
]


class NewRun(Body, frozen=True, kw_only=True):
    """A run to be created."""

    workflow_name: _Workflow
    input: Value = null
    deployment_id: _Deployment = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        check_params(f"{at}input", self.input, limits)


class PublishOptions(Body, frozen=True, kw_only=True):
    """How a message is published."""

    deployment_id: _Deployment = None
    idempotency_key: _Key = None


class Message(Body, frozen=True, kw_only=True):
    """A message for a queue; a queue is a workflow, a message a run of it."""

    queue_name: _Workflow
    message: Value = null
    opts: PublishOptions = PublishOptions()

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        check_params(f"{at}message", self.message, limits)


class NewEvent(Body, frozen=True, kw_only=True):
    """An event of a run; what it carries depends on its type."""

    run_id: Annotated[
        str | None,
        msgspec.Meta(description="The run; null of one that is to be created with an id of ours."),
    ] = None
    data: Annotated[
        msgspec.Raw,
        msgspec.Meta(
            description="`eventType` is run_created, run_cancelled or hook_received; `eventData` "
            "is what it carries."
        ),
    ]


class EventType(msgspec.Struct, frozen=True, rename="camel"):
    """What kind of event it is; the rest is read when that is known."""

    event_type: Any = None


class _EventData(Body, frozen=True, kw_only=True):
    event_type: str


class RunCreation(_EventData, frozen=True, kw_only=True):
    """A run is to be created."""

    event_data: NewRun

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        self.event_data.check(limits, f"{at}eventData.")


class RunCancellation(_EventData, frozen=True, kw_only=True):
    """A run is to be cancelled."""

    event_data: Ending = Ending()


class HookPayload(Body, frozen=True, kw_only=True):
    """What a hook has received."""

    payload: Value = null


class HookReceived(_EventData, frozen=True, kw_only=True):
    """A hook of a run has received something: an event of the type that its workflow waits for."""

    correlation_id: Annotated[
        str, msgspec.Meta(min_length=1, description="The type of event that the run waits for.")
    ]
    event_data: HookPayload = HookPayload()
