"""Endpoints of notifications: create, list, rotate, disable, enable and delete them."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, NamedTuple

import msgspec

from headwater.gateway.api.audit import attempt
from headwater.gateway.api.authentication import Caller, caller_in
from headwater.gateway.api.key_guards import insufficient_scope
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.processors.api_keys import Scope
from headwater.processors.endpoint_urls import URL_CHARS_MAX, Network, url_problem
from headwater.processors.endpoints import (
    ENDPOINTS_MAX,
    ID_BYTES,
    ID_PREFIX,
    SECRET_BYTES,
    Endpoint,
    EndpointState,
)
from headwater.processors.notifications import SCOPE_OF_TYPE, NotificationType
from headwater.schemas.endpoints import (
    EndpointCreated,
    EndpointDeleted,
    EndpointRecord,
    EndpointSecretSet,
    EndpointStateSet,
)
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.streams.kafka.endpoint_log import EndpointLog

_OVERLAP_DEFAULT_S: Final = 24 * 60 * 60
#: A month: longer than any plan for exchanging a secret.
_OVERLAP_MAX_S: Final = 31 * 24 * 60 * 60
_NAMES_MAX: Final = 100
#: Scopes by the names of types. Endpoints may have types of a later release, which count as rows.
_SCOPES: Final = {type_.value: scope for type_, scope in SCOPE_OF_TYPE.items()}
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 (the beginning of one)

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Names = Annotated[list[_Name], msgspec.Meta(max_length=_NAMES_MAX)]


def _about(description: str, *, most: int = _NAMES_MAX) -> msgspec.Meta:
    return msgspec.Meta(max_length=most, description=description)


class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class NewEndpoint(_Body, frozen=True, kw_only=True):
    """An endpoint to create. A filter without names accepts all."""

    url: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=URL_CHARS_MAX, description="Where notifications are posted."
        ),
    ]
    description: Annotated[str, _about("For people.", most=500)] = ""
    types: Annotated[
        list[NotificationType],
        msgspec.Meta(min_length=1, max_length=_NAMES_MAX, description="Types of notifications."),
    ]
    workflows: Annotated[list[_Name], _about("Workflows of notifications about instances.")] = []
    tables: Annotated[list[_Name], _about("Tables of notifications about rows.")] = []
    reasons: Annotated[list[_Name], _about("Reasons of notifications about dead letters.")] = []


class SecretRotation(_Body, frozen=True, kw_only=True):
    """How the secret of an endpoint is rotated."""

    overlap_seconds: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=_OVERLAP_MAX_S,
            description="How long notifications are also signed with the previous secret.",
        ),
    ] = _OVERLAP_DEFAULT_S


class Disabling(_Body, frozen=True, kw_only=True):
    """Why an endpoint is disabled."""

    why: Annotated[str, _about("For people.", most=500)] = ""


class EndpointListed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An endpoint."""

    id: str
    url: str
    description: str
    types: list[str]
    workflows: list[str]
    tables: list[str]
    reasons: list[str]
    state: str
    #: Why it is disabled.
    why: str | None
    state_set_at: datetime | None
    state_set_by: str | None
    created_at: datetime
    created_by: str
    rotated_at: datetime | None
    #: Until when notifications are also signed with the previous secret.
    previous_until: datetime | None


class EndpointShown(EndpointListed, frozen=True, kw_only=True):
    """An endpoint with its secret, which is shown only once."""

    secret: str


class EndpointList(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints, the newest first."""

    endpoints: list[EndpointListed]


class KeyEndpoints(NamedTuple):
    """Ids of endpoints of keys: disabled ones, and others with a secret that they drew."""

    disabled: list[str]
    rotated: list[str]


class EndpointDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint that was deleted."""

    id: str


class EndpointService:
    """Creates, lists and changes endpoints.

    Args:
        log: The topic of endpoints.
        networks: Networks that are allowed although they are not public.
        loopback: Whether addresses of this machine are allowed.
        draw: Returns as many random bytes.
        clock: Returns Unix milliseconds.

    Methods that change something take the request for its caller and its audit entries.

    Raises:
        Problem: Every method raises it when a request is refused.
    """

    def __init__(
        self,
        log: EndpointLog,
        *,
        networks: Sequence[Network],
        loopback: bool,
        draw: Callable[[int], bytes],
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._networks = networks
        self._loopback = loopback
        self._draw = draw
        self._clock = clock

    async def create(self, request: AnyRequest, new: NewEndpoint) -> EndpointShown:
        """Create an endpoint. Its caller must be able to read what it receives."""
        self._check(new)
        caller = _caller(request)
        require_scopes(request, new.types)
        if len((await self._log.catch_up()).by_id) >= ENDPOINTS_MAX:
            detail = f"expected at most {ENDPOINTS_MAX} endpoints, found as many; delete some"
            raise Problem("too_many_endpoints", detail)
        endpoint_id, secret = ID_PREFIX + self._draw(ID_BYTES).hex(), self._new_secret()
        await attempt(request, endpoint=endpoint_id, selection={"types": list(new.types)})
        by, now_ms = caller.key_id, self._clock()
        # First the secret: without one, a notification could not be signed.
        await self._log.write(
            EndpointSecretSet(
                id=endpoint_id, secret=secret, previous="", previous_until_ms=0, by=by, at_ms=now_ms
            )
        )
        created = EndpointCreated(
            id=endpoint_id,
            url=new.url,
            description=new.description,
            types=tuple(dict.fromkeys(new.types)),
            workflows=tuple(dict.fromkeys(new.workflows)),
            tables=tuple(dict.fromkeys(new.tables)),
            reasons=tuple(dict.fromkeys(new.reasons)),
            by=by,
            at_ms=now_ms,
        )
        endpoint = await self._log.write(created)
        if endpoint is None:
            raise Problem("not_found", "Another endpoint has this id; create the endpoint again.")
        return self._shown(endpoint, secret)

    async def list_endpoints(self) -> EndpointList:
        """Return the endpoints, the newest first."""
        endpoints = (await self._log.catch_up()).by_id.values()
        return EndpointList(endpoints=[self._listed(one) for one in reversed(list(endpoints))])

    async def get_endpoint(self, endpoint_id: str) -> EndpointListed:
        """Return an endpoint."""
        return self._listed(await self.find(endpoint_id))

    async def rotate(
        self, request: AnyRequest, endpoint_id: str, rotation: SecretRotation
    ) -> EndpointShown:
        """Give an endpoint a new secret. Its caller must be able to read what it receives."""
        endpoint = await self.find(endpoint_id)
        require_scopes(request, endpoint.created.types)
        await attempt(request, endpoint=endpoint_id)
        secret, now_ms = self._new_secret(), self._clock()
        record = EndpointSecretSet(
            id=endpoint_id,
            secret=secret,
            previous=endpoint.secret.secret if endpoint.secret else "",
            previous_until_ms=now_ms + rotation.overlap_seconds * 1000,
            by=_caller(request).key_id,
            at_ms=now_ms,
        )
        return self._shown(await self._write(record), secret)

    async def disable(self, request: AnyRequest, endpoint_id: str, why: str) -> EndpointListed:
        """Send no more notifications to an endpoint."""
        return await self._set_state(request, endpoint_id, EndpointState.DISABLED, why)

    async def enable(self, request: AnyRequest, endpoint_id: str) -> EndpointListed:
        """Send notifications to an endpoint again, of what happens from now on.

        Its caller must be able to read what it receives.
        """
        endpoint = await self.find(endpoint_id)
        require_scopes(request, endpoint.created.types)
        if endpoint.is_active:
            return self._listed(endpoint)
        return await self._set_state(request, endpoint_id, EndpointState.ACTIVE, "")

    async def disable_of(self, keys: AbstractSet[str], why: str, by: str) -> KeyEndpoints:
        """Disable the endpoints that keys created.

        Args:
            keys: Ids of keys.
            why: Why, for people.
            by: Id of the key that does it.
        """
        endpoints = list((await self._log.catch_up()).by_id.values())
        disabled = [one.id for one in endpoints if one.is_active and one.created.by in keys]
        for endpoint_id in disabled:
            at_ms, state = self._clock(), EndpointState.DISABLED
            record = EndpointStateSet(id=endpoint_id, state=state, why=why, by=by, at_ms=at_ms)
            # It may have been deleted meanwhile, which is as good.
            await self._log.write(record)
        rotated = [
            one.id
            for one in endpoints
            if one.secret and one.secret.by in keys and one.created.by not in keys
        ]
        return KeyEndpoints(disabled, rotated)

    async def delete(self, request: AnyRequest, endpoint_id: str) -> EndpointDeletion:
        """Delete an endpoint, and its secrets."""
        await self.find(endpoint_id)
        await attempt(request, endpoint=endpoint_id)
        by = _caller(request).key_id
        await self._log.write(EndpointDeleted(id=endpoint_id, by=by, at_ms=self._clock()))
        await self._log.erase(endpoint_id)
        return EndpointDeletion(id=endpoint_id)

    async def find(self, endpoint_id: str) -> Endpoint:
        """Return an endpoint."""
        endpoint = (await self._log.catch_up()).by_id.get(endpoint_id)
        if endpoint is None:
            raise _unknown(endpoint_id)
        return endpoint

    async def _set_state(
        self, request: AnyRequest, endpoint_id: str, state: EndpointState, why: str
    ) -> EndpointListed:
        await self.find(endpoint_id)
        await attempt(request, endpoint=endpoint_id)
        by = _caller(request).key_id
        record = EndpointStateSet(id=endpoint_id, state=state, why=why, by=by, at_ms=self._clock())
        return self._listed(await self._write(record))

    async def _write(self, record: EndpointRecord) -> Endpoint:
        endpoint = await self._log.write(record)
        if endpoint is None:
            raise _unknown(record.id)
        return endpoint

    def _check(self, new: NewEndpoint) -> None:
        problem = url_problem(new.url, self._networks, loopback=self._loopback)
        if problem is not None:
            raise Problem("invalid_parameter", f"url: {problem}", field="url")
        unknown = sorted(set(new.tables) - TABLE_BY_NAME.keys())
        if unknown:
            names = ", ".join(sorted(TABLE_BY_NAME))
            detail = f"tables: expected tables of {names}, found {unknown[0]!r}"
            raise Problem("invalid_parameter", detail, field="tables")

    def _new_secret(self) -> str:
        return _SECRET_PREFIX + b64encode(self._draw(SECRET_BYTES)).decode()

    def _shown(self, endpoint: Endpoint, secret: str) -> EndpointShown:
        return EndpointShown(**msgspec.structs.asdict(self._listed(endpoint)), secret=secret)

    def _listed(self, endpoint: Endpoint) -> EndpointListed:
        created, state, secret = endpoint.created, endpoint.state_set, endpoint.secret
        rotated = secret is not None and bool(secret.previous)
        until_ms = secret.previous_until_ms if secret and rotated else 0
        return EndpointListed(
            id=created.id,
            url=created.url,
            description=created.description,
            types=list(created.types),
            workflows=list(created.workflows),
            tables=list(created.tables),
            reasons=list(created.reasons),
            state=EndpointState.ACTIVE if endpoint.is_active else EndpointState.DISABLED,
            why=(state and state.why) or None,
            state_set_at=_moment_or_none(state.at_ms if state else 0),
            state_set_by=state.by if state else None,
            created_at=_moment(created.at_ms),
            created_by=created.by,
            rotated_at=_moment_or_none(secret.at_ms if secret and rotated else 0),
            previous_until=_moment_or_none(until_ms if until_ms > self._clock() else 0),
        )


def require_scopes(request: AnyRequest, types: Iterable[str]) -> None:
    """Require the scopes to read what notifications of some types contain.

    Raises:
        Problem: The caller of the request does not have them.
    """
    caller = _caller(request)
    missing = {_SCOPES.get(type_, Scope.ROWS_READ) for type_ in types} - caller.scopes
    if missing:
        raise insufficient_scope(caller, *missing)


def _unknown(endpoint_id: str) -> Problem:
    return Problem("not_found", f"expected the id of an endpoint, found {endpoint_id[:64]!r}")


def _caller(request: AnyRequest) -> Caller:
    caller = caller_in(request.scope)
    if caller is None:
        raise RuntimeError("expected a guard that admits callers, found none")
    return caller


def _moment(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def _moment_or_none(at_ms: int) -> datetime | None:
    return _moment(at_ms) if at_ms else None
