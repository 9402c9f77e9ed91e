"""The deployed graphs by name and version, folded from the log of deployments.

The order of the log decides. A deployer appends a record and reads its outcome. So two concurrent
deployers agree on who was first, and a record that was appended twice is one version.
"""

from typing import NamedTuple, TypeAlias

import msgspec

from headwater.schemas.deployments import GraphDeployed
from headwater.schemas.failures import GRAPH_CHANGED, GRAPH_OF_APP
from headwater.schemas.history import Json


class Version(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A version of a graph.

    Attributes:
        number: Numbered from 1 without gaps.
        deployed_at_ms: Unix milliseconds.
        app: App that declares the graph; empty if it was deployed over HTTP.
    """

    name: str
    number: int
    digest: str
    document: Json
    deployed_at_ms: int
    app: str


class Deployed(NamedTuple):
    """The deployed graph is the newest version; `new` if it was not before."""

    version: Version
    new: bool


class NameOwner(NamedTuple):
    """The app that owns a name after a worker's announcement; empty if none does."""

    app: str


class NotDeployed(NamedTuple):
    """Why a deployment was rejected."""

    code: str
    message: str


Outcome: TypeAlias = Deployed | NameOwner | NotDeployed


class Catalogue:
    """All versions of all graphs.

    Attributes:
        versions: Versions by name, oldest first.
        apps: Owning app by name; only the owner deploys versions of it.
        deployments: Deployment by name, for names that an app owns through it. The name is released
            when a deployment without it is activated.
    """

    def __init__(self) -> None:
        self.versions: dict[str, list[Version]] = {}
        self.apps: dict[str, str] = {}
        self.deployments: dict[str, str] = {}
        self._moves: dict[str, int] = {}

    def newest(self, name: str) -> Version | None:
        """Return the newest version of a graph, or None."""
        versions = self.versions.get(name)
        return versions[-1] if versions else None

    def version(self, name: str, number: int) -> Version | None:
        """Return a version of a graph, or None."""
        versions = self.versions.get(name, [])
        return versions[number - 1] if 1 <= number <= len(versions) else None

    def over_http(self, name: str) -> Version | None:
        """Return the newest version that was deployed over HTTP, or None."""
        versions = reversed(self.versions.get(name, []))
        return next((version for version in versions if not version.app), None)

    def has(self, record: GraphDeployed) -> bool:
        """Whether a worker's announcement is known already, or outdated."""
        name, newest = record.name, self.newest(record.name)
        if record.moves != self._moves.get(name, 0):
            return record.moves < self._moves.get(name, 0)
        if not record.app:
            return name not in self.deployments
        owner = self.apps.get(name, ""), self.deployments.get(name, "")
        return owner == (record.app, record.deployment) and (
            not record.document or (newest is not None and _is_same(newest, record))
        )

    def apply(self, record: GraphDeployed) -> Outcome:
        """Apply a deployment or a worker's announcement. Return its outcome."""
        if record.app or record.deployment:
            return self._announced(record)
        return self._rejection(record) or self._add_version(record)

    def _announced(self, record: GraphDeployed) -> Outcome:
        name = record.name
        if record.moves < self._moves.get(name, 0):
            # The worker has not seen the latest activation yet.
            return NameOwner(self.apps.get(name, ""))
        self._moves[name] = record.moves
        deployment = self.deployments.pop(name, None)
        if not record.app:
            return self._release(record) if deployment else NameOwner(self.apps.get(name, ""))
        self.apps[name] = record.app
        if record.deployment:
            self.deployments[name] = record.deployment
        return self._add_version(record) if record.document else NameOwner(record.app)

    def _release(self, record: GraphDeployed) -> Outcome:
        """Release the name; the graph deployed under it earlier becomes current again."""
        del self.apps[record.name]
        previous = self.over_http(record.name)
        if previous is None:
            return NameOwner("")
        content = {"document": previous.document, "digest": previous.digest}
        return self._add_version(msgspec.structs.replace(record, **content))

    def _add_version(self, record: GraphDeployed) -> Deployed:
        newest = self.newest(record.name)
        if newest is not None and _is_same(newest, record):
            return Deployed(newest, new=False)
        versions = self.versions.setdefault(record.name, [])
        version = Version(
            name=record.name,
            number=len(versions) + 1,
            digest=record.digest,
            document=record.document,
            deployed_at_ms=record.at_ms,
            app=record.app,
        )
        versions.append(version)
        return Deployed(version, new=True)

    def _rejection(self, record: GraphDeployed) -> NotDeployed | None:
        app, newest = self.apps.get(record.name), self.newest(record.name)
        if app is not None:
            return NotDeployed(
                GRAPH_OF_APP,
                f"expected a name that no app declares, found {record.name!r}, which is a workflow "
                f"of {app}; change it there, or deploy under another name",
            )
        digest = newest.digest if newest else "none"
        if record.after and record.after != digest:
            return NotDeployed(
                GRAPH_CHANGED,
                f"expected {record.after} to be the newest version of {record.name!r}, found "
                f"{digest}; check what was deployed in the meantime",
            )
        return None


def _is_same(version: Version, record: GraphDeployed) -> bool:
    return (version.digest, version.app) == (record.digest, record.app)
