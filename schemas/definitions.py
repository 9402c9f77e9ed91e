"""The record that deploys a graph. Whose version it becomes, if any, says the fold of the topic."""

import msgspec

from headwater.schemas.history import Json


class GraphDeployed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A definition that somebody deploys (topic `graph-definitions`, key: its own)."""

    #: The name of the graph.
    name: str
    #: The definition, as JSON; empty where an app takes the name for a workflow of code, and where
    #: the active deployment has none of this name.
    document: Json
    #: SHA-256 of the definition in its canonical form; empty without one.
    digest: str
    #: The app that declares it; empty if it was deployed over HTTP, or if the active deployment has
    #: none of this name.
    app: str
    #: The digest that the newest version has to have, or this counts for nothing; empty for any.
    after: str
    #: When it was deployed, Unix milliseconds, by the clock of whoever did.
    at_ms: int
    #: How many activations of deployments there were when an app said so: of two the one with more
    #: of them holds.
    moves: int = 0
    #: The active deployment, where this is what a worker says of that; empty for what its own apps
    #: have, and over HTTP.
    deployment: str = ""
