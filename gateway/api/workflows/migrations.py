"""Moves runs to other versions of their graphs: what would happen, and the move itself."""

from collections.abc import Mapping
from functools import partial

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.api.audit import attempt
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.authorization import Policy
from headwater.gateway.api.workflows.bodies import Migration
from headwater.gateway.api.workflows.command_service import CommandService
from headwater.gateway.api.workflows.graph_inspection import (
    SIMULATION_PROBLEMS,
    GraphInspection,
    Inspected,
    Run,
    spec_of,
)
from headwater.gateway.api.workflows.graphs import graph_not_found
from headwater.gateway.api.workflows.openapi import write_spec
from headwater.gateway.api.workflows.parameters import PathName, Position, Prefer
from headwater.processors.graph.catalogue import Version
from headwater.processors.graph.definition import DefinitionInvalid
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.migrating import simulate_migration
from headwater.processors.graph.past import Past
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.inspection import SIMULATE_MIGRATION
from headwater.processors.runs.limits import bounded
from headwater.schemas import answers
from headwater.schemas.failures import (
    GRAPH_INVALID,
    GRAPH_NOT_FOUND,
    INSTANCE_NOT_FOUND,
    INSTANCE_TERMINAL,
    MIGRATION_REFUSED,
    NOT_A_GRAPH,
)
from headwater.schemas.history import MigrateRun, NodeRename
from headwater.streams.workflows.deployment_log import DefinitionLog


class Migrations:
    """Finds versions of graphs, and moves runs to them."""

    def __init__(
        self,
        definitions: DefinitionLog,
        inspection: GraphInspection,
        command_service: CommandService,
    ) -> None:
        self._definitions = definitions
        self._inspection = inspection
        self._command_service = command_service

    async def _version(self, name: str, number: int) -> Version:
        catalogue = await self._definitions.catch_up()
        version = catalogue.version(name, number)
        if version is None:
            raise graph_not_found(catalogue, name, number)
        return version

    async def simulate(self, run: Run, request: Migration, position: Position) -> Response[bytes]:
        """Return where the tokens of a run would be.

        Raises:
            Problem: There is no such run or version, or the run has ended.
        """
        version = await self._version(run.workflow, request.to)
        inspect = partial(_simulate, version=version, renamed=request.map)
        return await self._inspection.inspect(run, position, None, inspect)

    async def migrate(
        self, workflow: str, instance_id: str, request: Migration, prefer: str
    ) -> Response[bytes]:
        """Move a run.

        Raises:
            Problem: There is no such run or version, or the run cannot continue there.
        """
        version = await self._version(workflow, request.to)
        renames = tuple(NodeRename(node, to) for node, to in request.map.items())
        command = MigrateRun(version.document, version.digest, version.number, renames)
        return await self._command_service.control_instance(workflow, instance_id, command, prefer)


def _simulate(past: Past, *, version: Version, renamed: Mapping[str, str]) -> Inspected:
    try:
        after = graph_of(version.document)
    except DefinitionInvalid as error:
        # It was deployed by a release with other validation rules.
        return Rejection(GRAPH_INVALID, bounded(str(error)))
    return simulate_migration(past, after=after, version=version.number, renamed=renamed)


def migration_routes(migrations: Migrations) -> list[HTTPRouteHandler]:
    """Return the routes that move a run to another version."""

    @post(
        **spec_of(
            SIMULATE_MIGRATION,
            examples.MIGRATED,
            *(*SIMULATION_PROBLEMS, GRAPH_NOT_FOUND, GRAPH_INVALID),
        )
    )
    async def post_migration(
        run: Run, data: JSONBody[Migration], position: Position
    ) -> Response[bytes]:
        return await migrations.simulate(run, data, position)

    @post(
        "/migrate",
        audit="instances.migrate",
        audits_attempt=True,
        operation_id="migrateInstance",
        summary="Move a run to another version of its graph",
        description="Every live token moves to the node of the same ref, or to the one in `map`. "
        "It is refused, and nothing changes, if one has no place there: `simulateMigration` shows "
        "which, and why.",
        **write_spec(
            Policy.MANAGE,
            answers.Managed,
            examples.DONE,
            *(INSTANCE_NOT_FOUND, INSTANCE_TERMINAL, NOT_A_GRAPH, MIGRATION_REFUSED),
            *(GRAPH_NOT_FOUND, GRAPH_INVALID),
        ),
    )
    async def migrate_instance(
        request: AnyRequest,
        workflow: PathName,
        instance_id: PathName,
        data: JSONBody[Migration],
        prefer: Prefer = "",
    ) -> Response[bytes]:
        await attempt(request, migration={"to": data.to, "map": data.map})
        return await migrations.migrate(workflow, instance_id, data, prefer)

    return [post_migration, migrate_instance]
