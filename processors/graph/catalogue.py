"""The graphs that are deployed, by name and version: the fold of what was deployed, in its order.

The order of the log decides. Whoever deploys appends a record and reads what it came to; so two who
deploy at once agree on who was first, and a record that was appended twice is one version.
"""

from typing import NamedTuple, TypeAlias

import msgspec

from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.failures import GRAPH_CHANGED, GRAPH_OF_APP
from headwater.schemas.history import Json


class Version(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A version of a graph.

    Units:  deployed_at_ms, Unix milliseconds.
    """

    name: str
    #: Gapless from 1.
    number: int
    digest: str
    document: Json
    deployed_at_ms: int
    #: The app that declares it; empty if it was deployed over HTTP.
    app: str


class Deployed(NamedTuple):
    """What was deployed is the newest version; new if it was not before."""

    version: Version
    new: bool


class Told(NamedTuple):
    """Whose a name is after what a worker has said: an app's, or nobody's if that is empty."""

    app: str


class NotDeployed(NamedTuple):
    """Why what was to be deployed was not."""

    code: str
    message: str


Outcome: TypeAlias = Deployed | Told | NotDeployed


class Catalogue:
    """All versions of all graphs.

    Shape:  versions are by name, the oldest first; apps are those that names belong to: nobody else
            deploys them. deployments are those that hold names in their apps' place; such a name is
            free again when one without it is activated.
    """

    def __init__(self) -> None:
        self.versions: dict[str, list[Version]] = {}
        self.apps: dict[str, str] = {}
        self.deployments: dict[str, str] = {}
        self._moves: dict[str, int] = {}

    def newest(self, name: str) -> Version | None:
        """The newest version of a graph, or None."""
        found = self.versions.get(name)
        return found[-1] if found else None

    def version(self, name: str, number: int) -> Version | None:
        """A version of a graph, or None."""
        found = self.versions.get(name, [])
        return found[number - 1] if 1 <= number <= len(found) else None

    def over_http(self, name: str) -> Version | None:
        """The newest version of a graph that was deployed over HTTP, or None."""
        return next((each for each in reversed(self.versions.get(name, [])) if not each.app), None)

    def has(self, record: GraphDeployed) -> bool:
        """Whether what a worker has to say is known, or more than that."""
        name, newest = record.name, self.newest(record.name)
        if record.moves != self._moves.get(name, 0):
            return record.moves < self._moves.get(name, 0)
        if not record.app:
            return name not in self.deployments
        held = self.apps.get(name, ""), self.deployments.get(name, "")
        return held == (record.app, record.deployment) and (
            not record.document or (newest is not None and _is_same(newest, record))
        )

    def apply(self, record: GraphDeployed) -> Outcome:
        """Applies what somebody deploys, or what a worker says; tells what it came to."""
        if record.app or record.deployment:
            return self._told(record)
        return self._refused(record) or self._version(record)

    def _told(self, record: GraphDeployed) -> Outcome:
        name = record.name
        if record.moves < self._moves.get(name, 0):
            # Of a worker that has not heard of an activation.
            return Told(self.apps.get(name, ""))
        self._moves[name] = record.moves
        held = self.deployments.pop(name, None)
        if not record.app:
            return self._freed(record) if held else Told(self.apps.get(name, ""))
        self.apps[name] = record.app
        if record.deployment:
            self.deployments[name] = record.deployment
        return self._version(record) if record.document else Told(record.app)

    def _freed(self, record: GraphDeployed) -> Outcome:
        """The name is nobody's: what had it before the deployment is its newest version again."""
        del self.apps[record.name]
        before = self.over_http(record.name)
        if before is None:
            return Told("")
        again = {"document": before.document, "digest": before.digest}
        return self._version(msgspec.structs.replace(record, **again))

    def _version(self, record: GraphDeployed) -> Deployed:
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

    def _refused(self, record: GraphDeployed) -> NotDeployed | None:
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
                f"{digest}; look at what was deployed meanwhile",
            )
        return None


def _is_same(version: Version, record: GraphDeployed) -> bool:
    return (version.digest, version.app) == (record.digest, record.app)
