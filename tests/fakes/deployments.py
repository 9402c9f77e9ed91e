"""The log of deployments in memory: the fold is the real one."""

from headwater.processors.deployments import Deployments


class MemoryDeployments:
    """What was deployed is what a test has applied."""

    def __init__(self) -> None:
        self.deployments = Deployments()

    async def catch_up(self) -> Deployments:
        return self.deployments

    async def stop(self) -> None:
        pass
