"""Settings of deployments: their environments, and the check before they are accepted."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field
from pydantic_settings import BaseSettings

from headwater.processors.runs.limits import DEPLOYED_HOSTS_MAX

if TYPE_CHECKING:
    from headwater.streams.workflows.environments import EnvironmentPolicy

_MIB: Final = 1024 * 1024


class DeploymentSettings(BaseSettings):
    """Limits of deployments, and how their requirements are installed."""

    deployment_hosts: int = Field(
        default=DEPLOYED_HOSTS_MAX,
        ge=1,
        le=1_000,
        description="Processes of a workflow worker for code of deployments, in addition to that "
        "of the active one; runs of further deployments wait.",
    )
    environment_mib: int = Field(
        default=2_048,
        ge=1,
        le=1024 * 1024,
        description="Largest environment of a deployment with a requirements.txt, in MiB.",
    )
    environment_install_s: int = Field(
        default=600,
        ge=1,
        le=86_400,
        description="Seconds that the installation of an environment may take.",
    )
    environment_packages: int = Field(
        default=500,
        ge=1,
        le=100_000,
        description="Packages that an environment may have.",
    )
    environment_builds: bool = Field(
        default=False,
        description="Whether packages of environments may be built from source, which executes "
        "code of theirs; otherwise only wheels are installed.",
    )
    wheels: str = Field(
        default="",
        description="Folder of wheels that environments are installed from, instead of from the "
        "index of pip or uv.",
    )
    check_memory_mib: int = Field(
        default=1_024,
        ge=128,
        le=1024 * 1024,
        description="Memory of the process that imports an app before it is deployed, in MiB.",
    )

    @property
    def environment_policy(self) -> "EnvironmentPolicy":
        """How environments are installed."""
        # Slow to import, and commands over HTTP do not need it.
        from headwater.streams.workflows.environments import EnvironmentPolicy  # noqa: PLC0415

        return EnvironmentPolicy(
            bytes_max=self.environment_mib * _MIB,
            install_s=self.environment_install_s,
            packages_max=self.environment_packages,
            builds=self.environment_builds,
            wheels=Path(self.wheels) if self.wheels else None,
        )
