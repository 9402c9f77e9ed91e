"""Receive the event of a hook: one POST to a URL that a run has created.

The URL is the permission: its token names one wait of one run, and nothing else.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from litestar import Response, post
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import PathParameter

from headwater.gateway.api.audit import note
from headwater.gateway.api.authentication import Caller, accept, admit, key_id, refuse
from headwater.gateway.api.json_bodies import BodySize, check_json, run_parser
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyConnection, AnyRequest
from headwater.gateway.api.workflows.bodies import check_value
from headwater.gateway.api.workflows.command_outcomes import CommandsPending
from headwater.gateway.api.workflows.command_service import CommandService
from headwater.gateway.api.workflows.openapi import BODY_PROBLEMS
from headwater.gateway.api.workflows.query_service import response_of
from headwater.processors.hooks import HOOK_CALL, HookTarget, verify
from headwater.schemas.failures import INSTANCE_NOT_FOUND, INSTANCE_TERMINAL, MAILBOX_FULL
from headwater.schemas.history import Once, SendEvent
from headwater.schemas.v1_answers import HookAccepted

BASE: Final = "/v1/hooks"
#: Calls of one URL within a window; a repeated call gets the same response.
_CALLS_MAX: Final = 10
_WINDOW_MS: Final = 60_000
#: URLs whose calls are counted; an entry takes about 200 bytes.
_COUNTED_MAX: Final = 10_000
_ENDED: Final = frozenset({INSTANCE_NOT_FOUND, INSTANCE_TERMINAL})
#: Digest of every request of a hook: a repeated call is the first one, whatever its body.
_ANY_BODY: Final = "hook"
_TARGET: Final = "headwater.hook"


class _Calls(NamedTuple):
    since_ms: int
    number: int


class HookCalls:
    """Counts the calls of hooks, in memory.

    Args:
        clock: Returns Unix milliseconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._calls: OrderedDict[str, _Calls] = OrderedDict()

    def count(self, event_type: str) -> None:
        """Count a call of the hook with an event type.

        Raises:
            Problem: It was called too often.
        """
        now_ms = self._clock()
        calls = self._calls.pop(event_type, _Calls(now_ms, 0))
        if not 0 <= now_ms - calls.since_ms < _WINDOW_MS:
            calls = _Calls(now_ms, 0)
        self._calls[event_type] = _Calls(calls.since_ms, calls.number + 1)
        if len(self._calls) > _COUNTED_MAX:
            self._calls.popitem(last=False)
        if calls.number >= _CALLS_MAX:
            seconds = (calls.since_ms + _WINDOW_MS - now_ms) // 1_000 + 1
            raise Problem(
                "too_many_requests",
                f"expected at most {_CALLS_MAX} calls of a hook in a minute, found more; try "
                f"again in {seconds} s",
                headers={"retry-after": str(seconds)},
            )


class Hooks:
    """Receives events of hooks.

    Args:
        command_service: Sends the events.
        keys: Keys that sign tokens; any is accepted.
        project: The project of this gateway; hooks of others do not exist here.
        clock: Returns Unix milliseconds.
        new_id: Returns new ids of events.
    """

    def __init__(
        self,
        command_service: CommandService,
        keys: Sequence[str],
        *,
        project: str,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._command_service = command_service
        self._keys = keys
        self._project = project
        self._clock = clock
        self._new_id = new_id
        self._calls = HookCalls(clock)

    async def guard(self, connection: AnyConnection, _handler: BaseRouteHandler) -> None:
        """Admit a request with the token of a hook; a guard in the sense of Litestar.

        Raises:
            Problem: There is no such hook, it has expired, or it was called too often.
        """
        token = str(connection.path_params.get("hook_token", ""))
        target = verify(self._keys, self._project, token)
        if target is None:
            refuse(connection, key_id("hook", token))
            raise Problem("hook_not_found", "expected the URL of a hook, found another one")
        # Before the caller is admitted, so that the URL of a hook cannot fill the audit log.
        self._calls.count(target.event_type)
        if self._clock() >= target.expires_ms:
            raise Problem("hook_expired", "expected a call before the hook expired")
        hook = Caller(key_id("hook", target.event_type), frozenset())
        accept(connection, hook.key_id)
        admit(connection.scope, hook)
        connection.scope["state"][_TARGET] = target

    async def receive(self, target: HookTarget, payload: bytes) -> None:
        """Send the event of a hook, once: a repeated call has no effect.

        Raises:
            Problem: The run has ended, or the event was refused.
        """
        once = Once(f"{HOOK_CALL}{target.event_type}", _ANY_BODY)
        command = SendEvent(self._new_id(), target.event_type, payload.decode(), once=once)
        try:
            # The run may continue as soon as the event is in its history.
            await self._command_service.send_command(
                target.workflow, target.instance_id, command, "respond-async"
            )
        except CommandsPending:
            pass  # It is stored, and received when a worker starts.
        except Problem as problem:
            if problem.code not in _ENDED:
                raise
            raise Problem("hook_expired", "expected a run that waits, it has ended") from problem


def hook_route(hooks: Hooks) -> HTTPRouteHandler:
    """Return the route of hooks."""

    @post(
        "/{hook_token:str}",
        audit="hooks.receive",
        body=BodySize.EVENT,
        operation_id="receiveHook",
        summary="Send the event of a hook",
        description="The body is the payload of the event, any JSON; without one it is null. "
        "Only the first call has an effect; repeated calls get the same response.",
        status_code=200,
        responses={200: ResponseSpec(HookAccepted, generate_examples=False)}
        | problem_responses(
            *BODY_PROBLEMS,
            *("hook_not_found", "hook_expired", "too_many_requests", MAILBOX_FULL),
            *("broker_unavailable", "outcome_unknown", "not_yet_readable"),
        ),
    )
    async def receive_hook(
        request: AnyRequest,
        hook_token: Annotated[str, PathParameter(description="Token of the hook.")],
    ) -> Response[bytes]:
        target: HookTarget = request.scope["state"][_TARGET]
        note(
            request,
            run_id=target.instance_id,
            workflow=target.workflow,
            event_type=target.event_type,
        )
        body = (await request.body()).strip() or b"null"
        await run_parser(lambda: check_json(body), len(body))
        check_value("INVALID_EVENT_PAYLOAD", "body", msgspec.Raw(body))
        await hooks.receive(target, body)
        return response_of(HookAccepted(accepted=True), {})

    return receive_hook
