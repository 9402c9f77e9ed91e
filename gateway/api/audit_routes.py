"""Read routes of the audit log, under /v1/audit, and its problems in the OpenAPI description."""

import dataclasses
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from litestar import Router, get
from litestar.di import NamedDependency, Provide
from litestar.openapi import ResponseSpec
from litestar.params import QueryParameter
from litestar.plugins import ReceiveRoutePlugin
from litestar.routes import BaseRoute, HTTPRoute
from typing_extensions import override

from headwater.gateway.api.audit import ACTION, ATTEMPTED, FAILURE, READ, SUCCESS
from headwater.gateway.api.key_guards import OPERATORS, SCOPE, KeyGuard
from headwater.gateway.api.openapi import ADMIN_KEY, API_KEY, problem_responses, responses_of
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import moment_of, with_checked_parameters
from headwater.processors.api_keys import Scope
from headwater.projections.audit import AuditFilter, Chained, EntryFields, newest
from headwater.projections.postgres.connections import PooledReader

_PAGE_DEFAULT: Final = 50
_PAGE_MAX: Final = 1000


class Result(StrEnum):
    """Result of an entry: `attempted` is written before an operation acts."""

    ATTEMPTED = ATTEMPTED
    SUCCESS = SUCCESS
    FAILURE = FAILURE


_Limit = Annotated[
    int, QueryParameter(ge=1, le=_PAGE_MAX, description="Maximum number of results.")
]
_ProjectId = Annotated[
    str | None,
    QueryParameter(name="projectId", description="The project of the gateway; others are refused."),
]
_Action = Annotated[str | None, QueryParameter(description="Only entries of this action.")]
_Result = Annotated[Result | None, QueryParameter(description="Only entries with this result.")]
_KeyId = Annotated[
    str | None, QueryParameter(name="keyId", description="Only entries of this key.")
]
_RunId = Annotated[
    str | None, QueryParameter(name="runId", description="Only entries about this run.")
]
_Since = Annotated[str | None, QueryParameter(description="Only entries since, in RFC 3339.")]
_Until = Annotated[str | None, QueryParameter(description="Only entries before, in RFC 3339.")]
_Cursor = Annotated[str | None, QueryParameter(description="Cursor of the previous page.")]


class AuditEntry(EntryFields, frozen=True, kw_only=True):
    """An entry.

    `hash` is the SHA-256 of the hash of the project's previous entry and of this entry.
    """

    metadata: Any
    hash: str


class AuditPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Entries, newest first; `cursor` continues with older ones."""

    entries: list[AuditEntry]
    cursor: str | None
    has_more: bool


def audit_router(reader: PooledReader, keys: KeyGuard, project: str) -> Router:
    """Return the router for /v1/audit, which lists the entries of one project."""

    @get(
        "/",
        scope=Scope.AUDIT_READ,
        audit_read="audit.read",
        operation_id="listAuditEntries",
        summary="List audit entries, newest first",
        responses=problem_responses("invalid_parameter", "invalid_cursor", "store_unavailable"),
    )
    async def entries(
        filters: NamedDependency[AuditFilter], limit: _Limit = _PAGE_DEFAULT, cursor: _Cursor = None
    ) -> AuditPage:
        if filters.project_id not in {None, project}:
            detail = f"projectId: expected {project}, the project of this gateway, found another"
            raise Problem("invalid_parameter", detail, field="projectId")
        own = msgspec.structs.replace(filters, project_id=project)
        page, more = await newest(reader, own, limit=limit, cursor=cursor)
        return AuditPage(entries=list(map(_entry, page)), cursor=more, has_more=more is not None)

    return Router(
        "/v1/audit",
        route_handlers=[entries],
        dependencies={"filters": Provide(_filters, sync_to_thread=False)},
        guards=[with_checked_parameters(keys.requires(OPERATORS))],
        security=[{ADMIN_KEY: []}],
        tags=["operate"],
    )


def _filters(  # noqa: PLR0913, PLR0917 (one parameter per query parameter)
    project_id: _ProjectId = None,
    action: _Action = None,
    result: _Result = None,
    key_id: _KeyId = None,
    run_id: _RunId = None,
    since: _Since = None,
    until: _Until = None,
) -> AuditFilter:
    return AuditFilter(
        project_id=project_id,
        action=action,
        result=result,
        key_id=key_id,
        run_id=run_id,
        since=moment_of("since", since),
        until=moment_of("until", until),
    )


def _entry(chained: Chained) -> AuditEntry:
    fields = msgspec.structs.asdict(chained.entry)
    metadata = msgspec.json.decode(fields.pop("metadata_json") or "{}")
    return AuditEntry(**fields, metadata=metadata, hash=chained.hash.hex())


class RouteProblems(ReceiveRoutePlugin):
    """Describes the scope of every route, and the problems of scopes and of the audit log."""

    @override
    def receive_route(self, route: BaseRoute) -> None:
        if not isinstance(route, HTTPRoute):
            return
        for handler in route.route_handlers:
            codes: list[str] = []
            if handler.opt.get(ACTION) or handler.opt.get(READ):
                codes.append("audit_unavailable")
            if handler.opt.get(ACTION):
                codes.append("result_not_recorded")
            if (needed := handler.opt.get(SCOPE)) is not None:
                codes += ["insufficient_scope", "keys_unavailable"]
                text = f"{handler.description or ''} An API key needs the scope `{needed}`."
                handler.description = text.strip()
                handler.security = [*(handler.security or ()), {API_KEY: []}]
            described = dict(handler.responses or {})
            for status, spec in responses_of(*codes).items():
                described[status] = _joined(described.get(status), spec)
            handler.responses = described


def _joined(known: ResponseSpec | None, added: ResponseSpec) -> ResponseSpec:
    if known is None or added.description in known.description:
        return known or added
    return dataclasses.replace(known, description=f"{known.description}; {added.description}")
