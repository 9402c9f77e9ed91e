"""Request bodies of the routes of runs."""

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from typing_extensions import override

from headwater.gateway.api.json_bodies import invalid
from headwater.gateway.api.workflows.bodies import Body, Ending, Value, check_params, null
from headwater.gateway.settings.patterns import KEY
from headwater.processors.queue_messages import QUEUE_NAME_MAX, headers_problem
from headwater.processors.runs.limits import DAY_MS
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
_Queue: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=QUEUE_NAME_MAX, description="Name of the queue.")
]
_Headers: TypeAlias = Annotated[
    dict[str, str], msgspec.Meta(description="Headers of the message, for rules.")
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


class _Delivery(Body, frozen=True, kw_only=True):
    """How a message is delivered."""

    deployment_id: _Deployment = None
    delay_seconds: Annotated[
        float, msgspec.Meta(ge=0, description="Seconds until the message is delivered.")
    ] = 0
    headers: _Headers | None = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        problem = headers_problem(self.headers or {})
        if problem:
            raise invalid(f"{at}headers", problem)
        if self.delay_seconds > limits.max_sleep_days * DAY_MS / 1_000:
            raise invalid(
                f"{at}delaySeconds",
                f"expected at most {limits.max_sleep_days} days (max_sleep_days), found "
                f"{self.delay_seconds:g} seconds",
            )


class PublishOptions(_Delivery, frozen=True, kw_only=True):
    """Options of a message of the World."""

    idempotency_key: _Key = None
    spec_version: Annotated[
        int | str | None, msgspec.Meta(description="Version of the World; it has no effect.")
    ] = None


class Message(Body, frozen=True, kw_only=True):
    """A message for a queue."""

    queue_name: _Queue
    message: Value = null
    opts: PublishOptions | None = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        check_params(f"{at}message", self.message, limits)
        if self.opts is not None:
            self.opts.check(limits, f"{at}opts.")


class NewMessage(_Delivery, frozen=True, kw_only=True):
    """A message for the queue in the path."""

    message: Value = null

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        check_params(f"{at}message", self.message, limits)
        _Delivery.check(self, limits, at)


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
