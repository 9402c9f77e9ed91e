"""The log of deployments in memory: the fold is the real one."""

from headwater.processors.deployments import Deployments, Outcome
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated
from headwater.schemas.errors import BrokerUnavailable


class MemoryDeployments:
    """Deploys at once; `away` makes it a log whose broker does not answer."""

    def __init__(self, *, away: bool = False) -> None:
        self.deployments = Deployments()
        self.artifacts: list[bytes] = []
        self._away = away

    async def catch_up(self) -> Deployments:
        self._check()
        return self.deployments

    async def upload(self, _deployment_id: str, artifact: bytes) -> int:
        self._check()
        self.artifacts.append(artifact)
        return len(self.artifacts) - 1

    async def write(self, record: DeploymentCreated | DeploymentActivated) -> Outcome:
        self._check()
        return self.deployments.apply(record)

    async def stop(self) -> None:
        pass

    def _check(self) -> None:
        if self._away:
            raise BrokerUnavailable("expected an answer of memory within 5 s, found none")
