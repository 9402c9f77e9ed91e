"""The log of deployments in memory: the fold is the real one."""

from collections.abc import Iterable

from headwater.processors.deployments import DeploymentOutcome, Deployments
from headwater.schemas.deployments import (
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRecord,
    DeploymentRetired,
)
from headwater.schemas.errors import BrokerUnavailable


class MemoryDeployments:
    """Deploys at once; `away` makes it a log whose broker does not answer."""

    def __init__(self, *, away: bool = False) -> None:
        self.deployments = Deployments()
        self.artifacts: list[bytes] = []
        self.discarded: list[str] = []
        #: Workers of which answers were deleted.
        self.discarded_loads: list[str] = []
        self._away = away

    @property
    def fold(self) -> Deployments:
        return self.deployments

    async def catch_up(self) -> Deployments:
        self._check()
        return self.deployments

    async def upload(self, _deployment_id: str, artifact: bytes) -> int:
        self._check()
        self.artifacts.append(artifact)
        return len(self.artifacts) - 1

    async def write(self, record: DeploymentRecord) -> DeploymentOutcome:
        self._check()
        return self.deployments.apply(record)

    async def discard(self, removal: DeploymentRetired) -> None:
        self._check()
        self.discarded.append(removal.id)

    async def discard_loads(self, _deployment_id: str, workers: Iterable[str]) -> None:
        self._check()
        self.discarded_loads += workers

    async def artifact(self, deployment: DeploymentCreated) -> bytes:
        self._check()
        return self.artifacts[deployment.offset]

    async def stop(self) -> None:
        pass

    def _check(self) -> None:
        if self._away:
            raise BrokerUnavailable("expected an answer of memory within 5 s, found none")


def with_active_deployment(*workflows: str) -> MemoryDeployments:
    """A log in which a deployment of these workflows is active."""
    result = MemoryDeployments()
    result.deployments.apply(
        DeploymentCreated(
            id="dep_1",
            app="app",
            digest="00",
            size=1,
            offset=0,
            workflows=tuple(DeployedWorkflow(name=name, kind="code") for name in workflows),
            by="admin:00000000",
            at_ms=1,
        )
    )
    result.deployments.apply(
        DeploymentActivated(id="dep_1", after="", rollback=False, by="admin:00000000", at_ms=2)
    )
    return result
