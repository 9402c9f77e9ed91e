"""The gateway's application over memory: stand-ins for all that a test does not say."""

from itertools import count
from pathlib import Path
from typing import Any

from litestar import Litestar

from headwater.gateway.api.app import Ports, create_app
from headwater.gateway.api.users.ports import UserServices
from headwater.gateway.api.wiping import Wiping
from headwater.gateway.api.workflows.authorization import WorkflowHooks
from headwater.gateway.api.workflows.routes import WorkflowPorts
from headwater.gateway.api.workflows.runs.run_service import RunPorts
from headwater.gateway.builtin.blobs.folder import FolderBlobs
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_with_secrets
from headwater.projections.deliveries.queries import Reader
from headwater.projections.gateway_state import IdempotencyKeys
from headwater.projections.workflows.queries import Workflows
from headwater.projections.workflows.runs import Runs
from headwater.projections.workflows.world import WorldEntries
from tests.fakes.api_keys import MemoryApiKeys
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.auditor_reports import MemoryReports
from tests.fakes.definitions import MemoryDefinitions
from tests.fakes.delivery_log import MemoryAnswers, MemoryLog, MemoryReplays, MemoryWipes
from tests.fakes.deployments import MemoryDeployments
from tests.fakes.endpoints import MemoryEndpoints
from tests.unit.gateway.workflow_fakes import MemoryCommands, MemoryRuns


def without_postgres() -> Reader:
    """Of a Postgres that is away: at the port of nobody, which refuses at once."""
    return Reader("postgresql://headwater@127.0.0.1:1/headwater", connect_timeout_s=0.1)


def memory_app(settings: Settings | None = None, **ports: Any) -> Litestar:  # noqa: ANN401 (theirs)
    settings = settings or Settings()
    numbers, drawn = count(1), count(1)
    blobs = FolderBlobs(Path("/nobody has written here"))
    usual: dict[str, Any] = {
        "log": MemoryLog(),
        "answers": MemoryAnswers(),
        "audit": MemoryAudit(),
        "replays": MemoryReplays(),
        "reader": without_postgres(),
        "workflows": memory_workflows(),
        "users": UserServices(tokens=None, terra=terra_of_nobody(settings), blobs=blobs),
        "wiping": Wiping(log=MemoryWipes(), blobs=blobs, new_id=lambda: "wipe", polls=1),
        "api_keys": MemoryApiKeys(),
        "endpoints": MemoryEndpoints(),
        "auditor": MemoryReports(),
        "draw": lambda size: next(drawn).to_bytes(size),
        "clock": lambda: 0,
        "new_request_id": lambda: f"request-{next(numbers)}",
    }
    return create_app(settings, sources_with_secrets(settings, {}), Ports(**(usual | ports)))


def terra_of_nobody(settings: Settings) -> Terra:
    """As it is without a developer id: it refuses to ask."""
    return Terra(settings.terra, draw=lambda: 0.0, wall_s=lambda: 0.0)


async def _no_workers() -> list[str]:
    return []


def memory_workflows(
    deployments: MemoryDeployments | None = None,
    **ports: Any,  # noqa: ANN401 (theirs)
) -> WorkflowPorts:
    numbers = count(1)
    usual: dict[str, Any] = {
        "commands": MemoryCommands(),
        "definitions": MemoryDefinitions(),
        "run_ports": RunPorts(
            rows=Runs(without_postgres()),
            keys=IdempotencyKeys(without_postgres()),
            deployments=deployments or MemoryDeployments(),
            project_id="default",
        ),
        "world": WorldEntries(without_postgres()),
        "workflows": Workflows(without_postgres()),
        "runs": MemoryRuns(),
        "hooks": WorkflowHooks(),
        "workers": _no_workers,
        "new_id": lambda: f"id-{next(numbers)}",
        "clock": lambda: 0,
    }
    return WorkflowPorts(**(usual | ports))
