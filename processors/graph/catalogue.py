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


class Taken(NamedTuple):
    """A name that is an app's: nobody else deploys it."""

    app: str


class NotDeployed(NamedTuple):
    """Why what was to be deployed was not."""

    code: str
    message: str


Outcome: TypeAlias = Deployed | Taken | NotDeployed


class Catalogue:
    """All versions of all graphs.

    Shape:  versions are by name, the oldest first; apps are those that names belong to.
    """

    def __init__(self) -> None:
        self.versions: dict[str, list[Version]] = {}
        self.apps: dict[str, str] = {}
        self._moves: dict[str, int] = {}

    def newest(self, name: str) -> Version | None:
        """The newest version of a graph, or None."""
        found = self.versions.get(name)
        return found[-1] if found else None

    def version(self, name: str, number: int) -> Version | None:
        """A version of a graph, or None."""
        found = self.versions.get(name, [])
        return found[number - 1] if 1 <= number <= len(found) else None

    def apply(self, record: GraphDeployed) -> Outcome:
        """Applies what somebody deploys; says what it came to."""
        if record.app:
            known = self._moves.get(record.name, 0)
            if record.moves < known:
                # Of a worker that has not heard of an activation.
                return Taken(self.apps[record.name])
            self._moves[record.name] = record.moves
            self.apps[record.name] = record.app
            if not record.document:
                return Taken(record.app)
        refused = None if record.app else self._refused(record)
        if refused is not None:
            return refused
        newest = self.newest(record.name)
        if newest is not None and newest.digest == record.digest:
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
