"""Operations about one user that built-in workflows carry out: imports, reconciles, disconnects.

Users and operators request them; the routes of both are thin.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.users.bodies import (
    DAYS_MAX,
    Disconnecting,
    Importing,
    Imports,
    Reconciling,
)
from headwater.gateway.api.users.connections import Connected, reconciled
from headwater.gateway.api.users.ports import UserPorts, begin
from headwater.gateway.builtin.data_requests import USER_LABEL
from headwater.gateway.builtin.instances import (
    DISCONNECT,
    IMPORT,
    RECONCILE_USER,
    DisconnectParams,
    ImportParams,
    InstanceNamed,
    ReconcileUserParams,
)
from headwater.gateway.builtin.terra.client import DATA_TYPES
from headwater.projections.deliveries.users import Connection
from headwater.schemas.history import RetryRun
from headwater.streams.workflows.client import Addressed

#: Error codes of these operations.
PROBLEMS: Final = (
    "terra_not_configured",
    "broker_unavailable",
    "store_unavailable",
    "outcome_unknown",
    "worker_unavailable",
    "not_yet_readable",
)

_DIGEST_BYTES: Final = 16


async def start_import(ports: UserPorts, user_id: str, days: int, request_id: str) -> Importing:
    """Start the import of a user's past days, of all active connections.

    The imports of a user are numbered. The next one may start when the latest has ended according
    to Postgres, and its id is the next number: of two concurrent starts, the owner of that instance
    accepts one.

    Raises:
        Problem: An import of the user is running, there is no active connection, or no worker has
            the workflow.
        TerraNotConfigured: Terra's credentials are not set.
        StoreUnavailable: Postgres did not answer.
    """
    ports.terra.require()
    instance_id = await _next_import(ports, user_id)
    params = ImportParams(
        user_id=user_id,
        days=min(days, DAYS_MAX),
        until=datetime.fromtimestamp(ports.clock() / 1000, UTC).date().isoformat(),
        connections=tuple(
            connection.terra_user_id for connection in await _active(ports, user_id, request_id)
        ),
    )
    if not await begin(ports.commands, IMPORT, instance_id, params, _labels(user_id)):
        raise _under_way(instance_id)
    return Importing(
        ok=True,
        days=params.days,
        connections=len(params.connections),
        requests=len(params.connections) * len(DATA_TYPES),
        instance=InstanceNamed(IMPORT, instance_id),
    )


async def list_imports(ports: UserPorts, user_id: str) -> Imports:
    """Return the latest imports of a user, and what has come of each request.

    Raises:
        StoreUnavailable: Postgres did not answer.
    """
    return Imports(await ports.imports(user_id, _digest(user_id)))


async def _next_import(ports: UserPorts, user_id: str) -> str:
    page = await ports.instances.instances(IMPORT, limit=1, labels=_labels(user_id))
    number = 1
    if page.rows:
        latest = page.rows[0]
        if not latest.details.ended:
            raise _under_way(latest.id)
        number = int(latest.id.rpartition("-")[2]) + 1
    return f"{_digest(user_id)}-{number}"


def _under_way(instance_id: str) -> Problem:
    return Problem(
        "import_under_way",
        f"The import {instance_id} is running; wait until it has ended.",
        running={"workflow": IMPORT, "id": instance_id},
    )


async def start_reconcile(ports: UserPorts, user_id: str) -> Reconciling:
    """Start to compare a user's connections with Terra's list, and to request their last days.

    Raises:
        Problem: No worker has the workflow.
        TerraNotConfigured: Terra's credentials are not set.
    """
    ports.terra.require()
    instance_id = ports.new_id()
    params = ReconcileUserParams(user_id=user_id)
    await begin(ports.commands, RECONCILE_USER, instance_id, params, _labels(user_id))
    return Reconciling(ok=True, instance=InstanceNamed(RECONCILE_USER, instance_id))


async def disconnect_all(ports: UserPorts, user_id: str, request_id: str) -> Disconnecting:
    """Start to end all active connections of a user.

    Raises:
        Problem: There is no active connection, or no worker has the workflow.
        TerraNotConfigured: Terra's credentials are not set.
        StoreUnavailable: Postgres did not answer.
    """
    ports.terra.require()
    return await _disconnect(ports, user_id, await _active(ports, user_id, request_id))


async def disconnect_one(
    ports: UserPorts, user_id: str, terra_user_id: str, request_id: str
) -> Disconnecting:
    """Start to end a connection of a user; for one that is closed, nothing is started.

    Raises:
        Problem: The user has no such connection, or no worker has the workflow.
        TerraNotConfigured: Terra's credentials are not set.
        StoreUnavailable: Postgres did not answer.
    """
    ports.terra.require()
    ours = await ports.connections(user_id)
    connection: Connected | Connection | None = _named(terra_user_id, ours)
    if connection is None or not connection.active:
        # Terra may list one that is not in Postgres, or is closed there.
        listed = (await reconciled(ports, user_id, request_id)).connections
        connection = _named(terra_user_id, listed)
    if connection is None:
        raise Problem("not_found", f"You have no connection {terra_user_id[:64]!a}.")
    if not connection.active:
        return Disconnecting(ok=True, connections=0, instance=None)
    return await _disconnect(ports, user_id, (connection,))


C = TypeVar("C", Connected, Connection)


def _named(terra_user_id: str, connections: Sequence[C]) -> C | None:
    return next((one for one in connections if one.terra_user_id == terra_user_id), None)


async def _disconnect(
    ports: UserPorts, user_id: str, connections: Sequence[Connected | Connection]
) -> Disconnecting:
    """Start the instance that ends these connections, or join it; retry it if it has failed.

    Its id is derived from the connections and when they were opened.
    """
    openings = {one.terra_user_id: _opened_ms(one) for one in connections}
    names = tuple(sorted(openings))
    instance_id = _digest("\n".join(f"{openings[name]} {name}" for name in names))
    params = DisconnectParams(user_id=user_id, connections=names)
    if not await begin(ports.commands, DISCONNECT, instance_id, params, _labels(user_id)):
        # Refused unless it has failed.
        await ports.commands.send_many([Addressed(DISCONNECT, instance_id, RetryRun())])
    return Disconnecting(
        ok=True, connections=len(names), instance=InstanceNamed(DISCONNECT, instance_id)
    )


def _opened_ms(connection: Connected | Connection) -> int:
    """Return when a connection was last opened, in Unix milliseconds; 0 if that is unknown."""
    opened = connection.connected_at
    return 0 if opened is None else round(opened.timestamp() * 1000)


async def _active(ports: UserPorts, user_id: str, request_id: str) -> tuple[Connected, ...]:
    """Return a user's active connections, reconciled with Terra's list."""
    current = await reconciled(ports, user_id, request_id)
    active = tuple(connection for connection in current.connections if connection.active)
    if not active:
        raise Problem("no_connections", "There is no active connection; connect a wearable first.")
    return active


def _labels(user_id: str) -> dict[str, str]:
    return {USER_LABEL: _digest(user_id)}


def _digest(user_id: str) -> str:
    return hashlib.blake2b(user_id.encode(), digest_size=_DIGEST_BYTES).hexdigest()
