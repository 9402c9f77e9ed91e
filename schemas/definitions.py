"""Record that deploys a graph. The fold of the topic determines its version, if it gets one."""

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
