"""Records that deploy graphs and code, and select what new runs start on."""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.history import Json


class GraphDeployed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A deployed definition (topic `graph-definitions`, key: its own)."""

    #: The name of the graph.
    name: str
    #: The definition, as JSON; empty if an app uses the name for a code workflow, or if the active
    #: deployment has no graph of this name.
    document: Json
    #: SHA-256 of the definition in its canonical form; empty without one.
    digest: str
    #: The app that declares it; empty if it was deployed over HTTP, or if the active deployment has
    #: none of this name.
    app: str
    #: Digest that the newest version must have, otherwise this is ignored; empty for any.
    after: str
    #: When it was deployed, Unix milliseconds, by the clock of the process that did it.
    at_ms: int
    #: Number of activations of deployments when an app declared it: of two declarations the one
    #: with the greater number counts.
    moves: int = 0
    #: The active deployment, if a worker declares it for that deployment; empty for a worker's own
    #: apps, and over HTTP.
    deployment: str = ""


# -- code


class DeployedWorkflow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow of a deployment."""

    #: Its name.
    name: str
    #: The engine of its runs.
    kind: str
    #: Whether its runs follow the code, rather than stay on the deployment that they started on.
    latest: bool = False
    #: The JSON Schema of its params, as text; null where it declares no type for them.
    params: Json | None = None
    #: Maximum number of active runs, in total or per key; null for any number.
    limit: int | None = None
    #: The expression that returns the key; null if the limit is for all runs together.
    limit_key: str | None = None
    #: The definition of a graph, as JSON; null for code.
    document: Json | None = None
    #: SHA-256 of the definition in its canonical form; empty without one.
    digest: str = ""
    #: The topics that its steps publish to, if it declares them.
    publishes: tuple[str, ...] = ()


class DeployedSchedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schedule of a deployment, which fires while that deployment is active."""

    #: Its name.
    name: str
    #: Its declaration, JSON text.
    declared: Json


class DeploymentCreated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An artifact was deployed: it is stored, and changes nothing before it is activated."""

    #: Id of the deployment, derived from its content.
    id: str
    #: The app in the artifact, as package.module or package.module:attribute.
    app: str
    #: SHA-256 of the artifact, in hex.
    digest: str
    #: Bytes of the artifact.
    size: int
    #: Offset of the artifact in its topic.
    offset: int
    #: Its workflows, by name.
    workflows: tuple[DeployedWorkflow, ...]
    #: The id of the key that deployed it.
    by: str
    #: When it was deployed, Unix milliseconds, by the clock of the process that did it.
    at_ms: int
    #: Its schedules.
    schedules: tuple[DeployedSchedule, ...] = ()
    #: SHA-256 of the names and contents of its unpacked files, in hex.
    content: str = ""
    #: The packages of its requirements.txt, as name==version.
    requirements: tuple[str, ...] = ()
    #: SHA-256 of its requirements with their hashes, in hex; empty if it has none.
    environment: str = ""
    #: Bytes of its environment, as the gateway installed it.
    environment_bytes: int = 0


class DeploymentActivated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New runs start on this deployment from here on."""

    #: The deployment.
    id: str
    #: The deployment that must be active before, otherwise this is ignored; empty for any. With a
    #: share, also that, as in "dep_1+dep_2@10".
    after: str
    #: Whether it returns to a deployment that was active before.
    rollback: bool
    #: The id of the key that activated it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int
    #: Percentage of the new runs that start on it. If it is less than 100, the others start on the
    #: active deployment, which does not change; 0 ends the share.
    percent: int = 100


#: Stages of a removal: no new run starts on the deployment; it is as before; it is removed.
CLOSED: Final = "closed"
REOPENED: Final = "reopened"
REMOVED: Final = "removed"


class DeploymentRetired(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A removal began, was given up, or is complete."""

    #: The deployment.
    id: str
    #: "closed", "reopened" or "removed".
    stage: str
    #: Identifies the closing. A later stage of another closing is ignored: runs may have started in
    #: between.
    closing: str
    #: The id of the key that requested it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int
    #: Whether a closing ends as soon as a run of the deployment turns out to be open.
    temporary: bool = False
    #: Its schedules, if it is removed and was active before.
    schedules: tuple[str, ...] = ()
    #: Its graphs, if it is removed and was active before.
    graphs: tuple[str, ...] = ()


#: States of an environment: it is installed; it cannot be installed; an operator requests to try
#: again, on all machines.
INSTALLED: Final = "installed"
FAILED: Final = "failed"
REQUESTED: Final = "requested"


class EnvironmentReported(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker installed an environment, or could not, or an operator requests to try again."""

    #: The deployment.
    id: str
    #: "installed", "failed" or "requested".
    state: str
    #: Name of the machine of the worker; empty for a request.
    machine: str = ""
    #: Why it cannot be installed, with the last lines of the installer.
    reason: str = ""
    #: The id of the key that requested it; empty for a worker.
    by: str = ""
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


class LoadRequested(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Every worker is to load a deployment and to state whether it can; nothing else changes."""

    #: The deployment.
    id: str
    #: Id of the request.
    request: str
    #: When, Unix milliseconds, by the clock of the process that requests it.
    at_ms: int


class DeploymentLoaded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker has tried to load a deployment, or is still installing its packages."""

    #: The deployment.
    id: str
    #: Id of the request.
    request: str
    #: The worker, by the name of its member.
    worker: str
    #: Why it cannot load it; empty if it can.
    error: str
    #: When, Unix milliseconds, by the worker's clock.
    at_ms: int
    #: Whether it is still installing the packages; another answer follows.
    installing: bool = False


#: Records of the topic of deployments.
DeploymentRecord: TypeAlias = (
    DeploymentCreated
    | DeploymentActivated
    | DeploymentRetired
    | LoadRequested
    | DeploymentLoaded
    | EnvironmentReported
)
