"""Routes of API keys, under /v1/keys: create, list, rotate and revoke them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, Router, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.authentication import Caller, caller_in
from headwater.gateway.api.endpoints import EndpointService
from headwater.gateway.api.json_bodies import LimitedBodies, OperatorRequest
from headwater.gateway.api.key_guards import OPERATORS, KeyGuard, insufficient_scope
from headwater.gateway.api.key_ring import KeyRing
from headwater.gateway.api.openapi import ADMIN_KEY, OptionalBody, problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import moment_of, with_checked_parameters
from headwater.gateway.api.request_scope import AnyRequest
from headwater.processors.api_keys import (
    NUMBER_BYTES,
    SECRET_BYTES,
    ApiKey,
    Role,
    Scope,
    digest_of,
    id_of,
    key_text,
    renewed_text,
    scopes_of,
)
from headwater.schemas.api_keys import ApiKeyCreated, ApiKeyRevoked, ApiKeyRotated
from headwater.streams.kafka.api_key_log import ApiKeyLog

#: Keys of a project that have not ended: every gateway has all of them in memory, and a program
#: needs one. A thousand take less than 1 MiB.
KEYS_MAX: Final = 1_000
_OVERLAP_DEFAULT_S: Final = 24 * 60 * 60
#: A month: longer than any plan for exchanging a key; then the key would have two secrets for good.
_OVERLAP_MAX_S: Final = 31 * 24 * 60 * 60
_RATE_MAX: Final = 1_000_000
#: The text of a key is shown once, so no cache may store it.
_NOT_STORED: Final = {"cache-control": "no-store"}


class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class NewKey(_Body, frozen=True, kw_only=True):
    """A key to create: with a role, scopes, or both."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100, description="Name for people.")]
    role: Annotated[Role | None, msgspec.Meta(description="A named set of scopes.")] = None
    scopes: Annotated[
        list[Scope], msgspec.Meta(max_length=100, description="Scopes besides those of the role.")
    ] = []
    expires_at: Annotated[
        str | None,
        msgspec.Meta(
            description="When it expires, in RFC 3339; by default with the key that creates it."
        ),
    ] = None
    rate_limit: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=_RATE_MAX)] | None,
        msgspec.Meta(
            description="Requests per minute; by default the limit of the key that creates it, or "
            "of the settings."
        ),
    ] = None


class Rotation(_Body, frozen=True, kw_only=True):
    """How a key is rotated."""

    overlap_seconds: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=_OVERLAP_MAX_S, description="How long the previous text is accepted."
        ),
    ] = _OVERLAP_DEFAULT_S
    expires_at: Annotated[
        str | None, msgspec.Meta(description="New time of expiry, in RFC 3339; else unchanged.")
    ] = None


class KeyListed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A key. `scopes` are all that it has, those of the role included."""

    id: str
    name: str
    project: str
    state: str
    role: str | None
    scopes: list[str]
    rate_limit: int | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    #: Begin of the hour of the last use.
    last_used_at: datetime | None
    rotated_at: datetime | None
    rotated_by: str | None
    #: Until when the text from before the last rotation is accepted.
    previous_until: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class KeyShown(KeyListed, frozen=True, kw_only=True):
    """A key with its text, which is shown only once."""

    key: str


class KeyRevoked(KeyListed, frozen=True, kw_only=True):
    """A revoked key."""

    #: Keys that were revoked with it, because it or one of them had created them.
    revoked_keys: list[str]
    #: Keys that are accepted, and whose current text it had drawn.
    rotated_keys: list[str]
    #: Endpoints that were disabled, because it or a key of `revoked_keys` had created them.
    disabled_endpoints: list[str]
    #: Other endpoints that have a secret which one of these keys drew.
    rotated_endpoints: list[str]


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, the newest first."""

    keys: list[KeyListed]


class ApiKeyService:
    """Creates, lists, rotates and revokes the keys of a project.

    Args:
        log: The topic of API keys.
        ring: The keys that this gateway accepts.
        endpoints: The endpoints that keys create.
        draw: Returns as many random bytes.
        clock: Returns Unix milliseconds.

    Methods that change something take the request for its caller and its audit entries.

    Raises:
        Problem: Every method raises it when a request is refused.
    """

    def __init__(
        self,
        log: ApiKeyLog,
        ring: KeyRing,
        endpoints: EndpointService,
        *,
        draw: Callable[[int], bytes],
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._ring = ring
        self._endpoints = endpoints
        self._draw = draw
        self._clock = clock

    async def create(self, request: AnyRequest, new: NewKey) -> KeyShown:
        """Create a key, with scopes, a life and a limit within those of its caller."""
        role = "" if new.role is None else new.role.value
        scopes = tuple(dict.fromkeys(scope.value for scope in new.scopes))
        granted = scopes_of(role, scopes)
        if not granted:
            raise _invalid("scopes", f"expected a role, or some of {', '.join(Scope)}, found none")
        caller = _caller(request)
        _require_scopes(caller, granted)
        expires_at_ms = self._expiry(new.expires_at) or caller.expires_at_ms
        _require_life(caller, expires_at_ms)
        if len(await self._keys(ended=False)) >= KEYS_MAX:
            detail = f"expected at most {KEYS_MAX} keys, found as many; revoke those without use"
            raise Problem("too_many_keys", detail)
        text = key_text(self._draw(NUMBER_BYTES), self._draw(SECRET_BYTES))
        record = ApiKeyCreated(
            id=id_of(text) or "",
            project=self._ring.project,
            name=new.name,
            role=role,
            scopes=scopes,
            digest=digest_of(text),
            expires_at_ms=expires_at_ms,
            rate_limit=_rate_limit(caller, new.rate_limit),
            by=caller.key_id,
            at_ms=self._clock(),
        )
        await attempt(request, key=record.id, key_role=role, key_scopes=scopes)
        key = await self._log.write(record)
        if key is None:
            raise Problem("key_ended", "Another key has this number; create the key again.")
        if key.revoked_at_ms:
            raise _ended(caller.key_id)
        return self._shown(key, text)

    async def list_keys(self, *, ended: bool) -> KeyList:
        """Return the keys, the newest first; those that have ended only if requested."""
        keys = await self._keys(ended=ended)
        return KeyList(keys=[self._listed(key) for key in reversed(keys)])

    async def get_key(self, key_id: str) -> KeyListed:
        """Return a key."""
        return self._listed(await self._key(key_id))

    async def rotate(self, request: AnyRequest, key_id: str, rotation: Rotation) -> KeyShown:
        """Give a key a new text. Its caller must have all scopes of the key, and live as long."""
        key = await self._key(key_id)
        caller = _caller(request)
        _require_scopes(caller, key.scopes)
        if key.ended(self._clock()):
            raise _ended(key_id)
        expires_at_ms = self._expiry(rotation.expires_at) or key.expires_at_ms
        _require_life(caller, expires_at_ms)
        text = renewed_text(key_id, self._draw(SECRET_BYTES))
        await attempt(request, key=key_id)
        now_ms = self._clock()
        rotated = await self._log.write(
            ApiKeyRotated(
                id=key_id,
                digest=digest_of(text),
                previous_until_ms=now_ms + rotation.overlap_seconds * 1000,
                expires_at_ms=expires_at_ms,
                by=caller.key_id,
                at_ms=now_ms,
            )
        )
        if rotated is None:
            ended = (await self._key(key_id)).ended(now_ms)
            raise _ended(key_id if ended else caller.key_id)
        return self._shown(rotated, text)

    async def revoke(self, request: AnyRequest, key_id: str) -> KeyRevoked:
        """Revoke a key and those that it created, and disable their endpoints.

        It may be repeated: the first time counts for keys, and endpoints are disabled again.
        """
        await self._key(key_id)
        before = {
            other.created.id for other in self._log.fold.created_by(key_id) if other.revoked_at_ms
        }
        await attempt(request, key=key_id)
        now_ms, by = self._clock(), _caller(request).key_id
        await self._log.write(ApiKeyRevoked(id=key_id, by=by, at_ms=now_ms))
        key, fold = await self._key(key_id), self._log.fold
        created = [other.created.id for other in fold.created_by(key_id)]
        revoked = [name for name in created if name not in before]
        rotated = [
            other.created.id
            for other in fold.by_id.values()
            if other.rotated_by in {key_id, *revoked} and not other.ended(now_ms)
        ]
        note(request, revoked_keys=revoked)
        ended = {key_id, *created}
        endpoints = await self._endpoints.disable_of(ended, f"{key_id} was revoked", by)
        note(request, disabled_endpoints=endpoints.disabled)
        return KeyRevoked(
            **msgspec.structs.asdict(self._listed(key)),
            revoked_keys=revoked,
            rotated_keys=rotated,
            disabled_endpoints=endpoints.disabled,
            rotated_endpoints=endpoints.rotated,
        )

    async def _keys(self, *, ended: bool) -> list[ApiKey]:
        by_id = (await self._log.catch_up()).by_id
        now_ms = self._clock()
        return [
            key
            for key in by_id.values()
            if key.created.project == self._ring.project and (ended or not key.ended(now_ms))
        ]

    async def _key(self, key_id: str) -> ApiKey:
        key = (await self._log.catch_up()).by_id.get(key_id)
        if key is None or key.created.project != self._ring.project:
            raise Problem("not_found", f"expected the id of a key, found {key_id[:64]!r}")
        return key

    def _expiry(self, text: str | None) -> int:
        """Return a time of expiry in Unix milliseconds; 0 for never."""
        moment = moment_of("expiresAt", text)
        if moment is None:
            return 0
        at_ms = int(moment.timestamp() * 1000)
        if at_ms <= self._clock():
            raise _invalid("expiresAt", f"expected a time in the future, found {text}")
        return at_ms

    def _shown(self, key: ApiKey, text: str) -> KeyShown:
        return KeyShown(**msgspec.structs.asdict(self._listed(key)), key=text)

    def _listed(self, key: ApiKey) -> KeyListed:
        created, now_ms = key.created, self._clock()
        previous_ms = key.secrets[1].until_ms if len(key.secrets) > 1 else 0
        state = "revoked" if key.revoked_at_ms else "expired" if key.ended(now_ms) else "active"
        return KeyListed(
            id=created.id,
            name=created.name,
            project=created.project,
            state=state,
            role=created.role or None,
            scopes=sorted(key.scopes),
            rate_limit=created.rate_limit or None,
            created_at=_moment(created.at_ms),
            created_by=created.by,
            expires_at=_moment_or_none(key.expires_at_ms),
            last_used_at=_moment_or_none(key.last_used_at_ms),
            rotated_at=_moment_or_none(key.rotated_at_ms),
            rotated_by=key.rotated_by or None,
            previous_until=_moment_or_none(previous_ms if previous_ms > now_ms else 0),
            revoked_at=_moment_or_none(key.revoked_at_ms),
            revoked_by=key.revoked_by or None,
        )


def _caller(request: AnyRequest) -> Caller:
    caller = caller_in(request.scope)
    if caller is None:
        raise RuntimeError("expected a guard that admits callers, found none")
    return caller


def _require_scopes(caller: Caller, granted: frozenset[str]) -> None:
    """Refuse to give a key more rights than its caller has."""
    missing = granted - caller.scopes
    if missing:
        raise insufficient_scope(caller, *missing)


def _require_life(caller: Caller, expires_at_ms: int) -> None:
    """Refuse to give a key a longer life than its caller has."""
    latest_ms = caller.expires_at_ms
    if latest_ms and not 0 < expires_at_ms <= latest_ms:
        found = _moment(expires_at_ms).isoformat() if expires_at_ms else "never"
        raise _invalid(
            "expiresAt",
            f"expected a time until {_moment(latest_ms).isoformat()}, when {caller.key_id} "
            f"expires, found {found}",
        )


def _rate_limit(caller: Caller, requested: int | None) -> int:
    """Return the limit of a new key: that of its caller, unless it gets a lower one."""
    if caller.rate_limit and requested and requested > caller.rate_limit:
        raise _invalid(
            "rateLimit",
            f"expected at most {caller.rate_limit}, the limit of {caller.key_id}, found "
            f"{requested}",
        )
    return requested or caller.rate_limit


def _invalid(field: str, detail: str) -> Problem:
    return Problem("invalid_parameter", f"{field}: {detail}", field=field)


def _ended(key_id: str) -> Problem:
    return Problem("key_ended", f"expected a key that is accepted, found {key_id} ended")


def _moment(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def _moment_or_none(at_ms: int) -> datetime | None:
    return _moment(at_ms) if at_ms else None


# -- routes

_LOG_PROBLEMS: Final = ("broker_unavailable", "not_yet_readable")
_Ended = Annotated[bool, QueryParameter(description="Also keys that were revoked or have expired.")]


def key_router(service: ApiKeyService, keys: KeyGuard, limited: LimitedBodies) -> Router:
    """Return the router of /v1/keys."""
    return Router(
        "/v1/keys",
        route_handlers=[
            _create_route(service),
            *_read_routes(service),
            _rotate_route(service),
            _revoke_route(service),
        ],
        guards=[with_checked_parameters(keys.requires(OPERATORS))],
        middleware=[limited],
        request_class=OperatorRequest,
        request_max_body_size=None,
        security=[{ADMIN_KEY: []}],
        tags=["keys"],
    )


def _create_route(service: ApiKeyService) -> HTTPRouteHandler:
    @post(
        "/",
        scope=Scope.KEYS_WRITE,
        audit="keys.create",
        audits_attempt=True,
        operation_id="createKey",
        summary="Create an API key",
        description="The response has the text of the key, which is not stored and not shown "
        "again. The caller must have all scopes that the key gets, and the key expires no later "
        "than its caller.",
        status_code=201,
        responses={
            201: ResponseSpec(KeyShown, False, "Created."),
            **problem_responses("too_many_keys", *_LOG_PROBLEMS),
        },
    )
    async def create_key(request: AnyRequest, data: JSONBody[NewKey]) -> Response[KeyShown]:
        return _once(await service.create(request, data), HTTPStatus.CREATED)

    return create_key


def _read_routes(service: ApiKeyService) -> list[HTTPRouteHandler]:
    @get(
        "/",
        scope=Scope.KEYS_READ,
        operation_id="listKeys",
        summary="List API keys, newest first",
        responses=problem_responses(*_LOG_PROBLEMS),
    )
    async def list_keys(ended: _Ended = False) -> KeyList:
        return await service.list_keys(ended=ended)

    @get(
        "/{keyId:str}",
        scope=Scope.KEYS_READ,
        operation_id="getKey",
        summary="Get an API key",
        responses=problem_responses("not_found", *_LOG_PROBLEMS),
    )
    async def get_key(keyId: FromPath[str]) -> KeyListed:  # noqa: N803 (as the path has it)
        return await service.get_key(keyId)

    return [list_keys, get_key]


def _rotate_route(service: ApiKeyService) -> HTTPRouteHandler:
    @post(
        "/{keyId:str}/rotate",
        scope=Scope.KEYS_WRITE,
        audit="keys.rotate",
        audits_attempt=True,
        operation_id="rotateKey",
        operation_class=OptionalBody,
        summary="Rotate an API key",
        description="The response has the new text of the key. The previous text is accepted for "
        "a day, or as long as the request states; an earlier one no longer is.",
        status_code=200,
        responses={
            200: ResponseSpec(KeyShown, False, "Rotated."),
            **problem_responses("not_found", "key_ended", *_LOG_PROBLEMS),
        },
    )
    async def rotate_key(
        request: AnyRequest,
        keyId: FromPath[str],  # noqa: N803 (as the path has it)
        data: JSONBody[Rotation | None] = None,
    ) -> Response[KeyShown]:
        return _once(await service.rotate(request, keyId, data or Rotation()), HTTPStatus.OK)

    return rotate_key


def _revoke_route(service: ApiKeyService) -> HTTPRouteHandler:
    @post(
        "/{keyId:str}/revoke",
        scope=Scope.KEYS_WRITE,
        audit="keys.revoke",
        audits_attempt=True,
        operation_id="revokeKey",
        summary="Revoke an API key",
        description="All gateways refuse it, and the keys that it created, within seconds. They "
        "cannot be accepted again. Endpoints that they created are disabled.",
        status_code=200,
        responses=problem_responses("not_found", *_LOG_PROBLEMS),
    )
    async def revoke_key(
        request: AnyRequest,
        keyId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> KeyRevoked:
        return await service.revoke(request, keyId)

    return revoke_key


def _once(shown: KeyShown, status: HTTPStatus) -> Response[Any]:
    return Response(shown, status_code=status, headers=_NOT_STORED)
