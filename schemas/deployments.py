"""The records that deploy code, and choose what new runs begin on (topic `deployments`)."""

import msgspec

from headwater.schemas.history import Json


class DeployedWorkflow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow of a deployment."""

    #: Its name.
    name: str
    #: The engine that decides for its runs.
    kind: str
    #: Whether its runs follow the code, rather than stay on the deployment that they began on.
    latest: bool = False
    #: The JSON Schema of its params, as text; null where it declares no type for them.
    params: Json | None = None
    #: How many of its runs may be under way at once, or for each key; null for any number.
    limit: int | None = None
    #: The expression that gives the key; null where the limit is for all runs together.
    limit_key: str | None = None
    #: The definition of a graph, as JSON; null for code.
    document: Json | None = None
    #: SHA-256 of the definition in its canonical form; empty without one.
    digest: str = ""
    #: The topics that its steps publish to, where it names them.
    publishes: tuple[str, ...] = ()


class DeployedSchedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schedule of a deployment, which fires while that is the active one."""

    #: Its name.
    name: str
    #: What it declares, JSON text.
    declared: Json


class DeploymentCreated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An artifact was deployed: it is there, and changes nothing before it is activated."""

    #: The deployment, named by what is in it.
    id: str
    #: The app in the artifact, as package.module or package.module:attribute.
    app: str
    #: SHA-256 of the artifact, in hex.
    digest: str
    #: Bytes of the artifact.
    size: int
    #: Offset of the artifact in its topic.
    offset: int
    #: What new runs may be of, by name.
    workflows: tuple[DeployedWorkflow, ...]
    #: The id of the key that deployed it.
    by: str
    #: When it was deployed, Unix milliseconds, by the clock of whoever did.
    at_ms: int
    #: Its schedules.
    schedules: tuple[DeployedSchedule, ...] = ()


class DeploymentActivated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New runs begin on this deployment from here on."""

    #: The deployment.
    id: str
    #: The one that has to be active before, or this counts for nothing; empty for any.
    after: str
    #: Whether it goes back to a deployment that was active before.
    rollback: bool
    #: The id of the key that activated it.
    by: str
    #: When, Unix milliseconds, by the clock of whoever did.
    at_ms: int
