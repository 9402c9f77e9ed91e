"""The gateway's application over memory: stand-ins for all that a test does not say."""

from itertools import count
from typing import Any

from litestar import Litestar

from headwater.gateway.app import create_app
from headwater.gateway.settings import Settings
from headwater.gateway.sources import sources_with_secrets
from headwater.gateway.workflows.authorization import WorkflowHooks
from headwater.gateway.workflows.routes import WorkflowPorts
from headwater.gateway.workflows.runs.running import RunPorts
from headwater.projections.deliveries.queries import Reader
from headwater.projections.idempotency import IdempotencyKeys
from headwater.projections.workflows.queries import Workflows
from headwater.projections.workflows.runs import Runs
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.definitions import MemoryDefinitions
from tests.fakes.delivery_log import MemoryAnswers, MemoryLog, MemoryReplays
from tests.fakes.deployments import MemoryDeployments
from tests.unit.gateway.workflow_fakes import MemoryCommands, MemoryRuns


def without_postgres() -> Reader:
    """Of a Postgres that is away: at the port of nobody, which refuses at once."""
    return Reader("postgresql://headwater@127.0.0.1:1/headwater", connect_timeout_s=0.1)


def memory_app(settings: Settings | None = None, **ports: Any) -> Litestar:  # noqa: ANN401 (theirs)
    settings = settings or Settings()
    numbers = count(1)
    usual: dict[str, Any] = {
        "sources": sources_with_secrets(settings, {}),
        "log": MemoryLog(),
        "reader": without_postgres(),
        "answers": MemoryAnswers(),
        "audit": MemoryAudit(),
        "replays": MemoryReplays(),
        "clock": lambda: 0,
        "new_request_id": lambda: f"request-{next(numbers)}",
    }
    return create_app(settings, **(usual | ports))


def memory_workflows(
    deployments: MemoryDeployments | None = None,
    **ports: Any,  # noqa: ANN401 (theirs)
) -> WorkflowPorts:
    numbers = count(1)
    usual: dict[str, Any] = {
        "commands": MemoryCommands(),
        "definitions": MemoryDefinitions(),
        "of_runs": RunPorts(
            rows=Runs(without_postgres()),
            keys=IdempotencyKeys(without_postgres()),
            deployments=deployments or MemoryDeployments(),
            project_id="default",
        ),
        "workflows": Workflows(without_postgres()),
        "runs": MemoryRuns(),
        "hooks": WorkflowHooks(),
        "new_id": lambda: f"id-{next(numbers)}",
        "clock": lambda: 0,
    }
    return WorkflowPorts(**(usual | ports))
