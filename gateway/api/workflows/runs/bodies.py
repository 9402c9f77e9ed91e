"""Request bodies of the routes of runs."""

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from typing_extensions import override

from headwater.gateway.api.workflows.bodies import Body, Ending, Value, check_params, null
from headwater.gateway.settings.patterns import KEY
from headwater.schemas.history import Limits

#: Most characters of a key, in the header, too.
KEY_MAX: Final = 255
_NAME_SHOWN: Final = 1_000

_Deployment: TypeAlias = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None,
    msgspec.Meta(description="Deployment that the run begins on; by default the active one."),
]
_Workflow: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=_NAME_SHOWN, description="Name of the workflow.")
]
_Key: TypeAlias = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_MAX, pattern=KEY)] | None,
    msgspec.Meta(description="Messages with the same key are published once within a day."),
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
    """Options of a message."""

    deployment_id: _Deployment = None
    idempotency_key: _Key = None


class Message(Body, frozen=True, kw_only=True):
    """A message for a queue. A queue is a workflow, and a message is a run of it."""

    queue_name: _Workflow
    message: Value = null
    opts: PublishOptions = PublishOptions()

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        check_params(f"{at}message", self.message, limits)


class NewEvent(Body, frozen=True, kw_only=True):
    """An event of a run; its data depends on its type."""

    run_id: Annotated[
        str | None,
        msgspec.Meta(description="The run; null to create one with a generated id."),
    ] = None
    data: Annotated[
        msgspec.Raw,
        msgspec.Meta(
            description="`eventType` is run_created, run_cancelled or hook_received; `eventData` "
            "depends on it."
        ),
    ]


class EventType(msgspec.Struct, frozen=True, rename="camel"):
    """Type of an event, parsed before the rest."""

    event_type: Any = None


class _EventData(Body, frozen=True, kw_only=True):
    event_type: str


class RunCreation(_EventData, frozen=True, kw_only=True):
    """Event that creates a run."""

    event_data: NewRun

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        self.event_data.check(limits, f"{at}eventData.")


class RunCancellation(_EventData, frozen=True, kw_only=True):
    """Event that cancels a run."""

    event_data: Ending = Ending()


class HookPayload(Body, frozen=True, kw_only=True):
    """Payload that a hook received."""

    payload: Value = null


class HookReceived(_EventData, frozen=True, kw_only=True):
    """A hook of a run received a payload: an event of the type that the workflow waits for."""

    correlation_id: Annotated[
        str, msgspec.Meta(min_length=1, description="Event type that the run waits for.")
    ]
    event_data: HookPayload = HookPayload()
