"""The rows of the graphs that are deployed are what the fold of their topic says."""

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.graph.catalogue import Catalogue
from headwater.projections.deployments import GRAPHS
from headwater.schemas.codec import encode
from headwater.schemas.deployments import GraphDeployed
from headwater.schemas.topics import GRAPH_DEFINITIONS
from tests.integration.one_topic import project, rows
from tests.unit.projections.histories import START_MS

PLACE = (GRAPH_DEFINITIONS, 0)


def deployed(
    name: str, what: str, by: str, after: str, moves: int = 0, deployment: str = ""
) -> GraphDeployed:
    """A record; a document of `what`, or none where there is no graph."""
    return GraphDeployed(
        name=name,
        document=f'{{"it":  "{what}"}}' if what else "",
        digest=what,
        app=by,
        after=after,
        at_ms=START_MS,
        moves=moves,
        deployment=deployment,
    )


NAMES = st.sampled_from(["review", "bill"])
CONTENTS = st.sampled_from(["a", "b", "é\\u0000"])
APPS = st.sampled_from(["shop", "desk"])
MOVES = st.integers(0, 2)
DEPLOYMENTS = st.sampled_from(["dep_1", "dep_2"])
RECORDS = st.one_of(
    st.builds(deployed, NAMES, CONTENTS, st.just(""), st.sampled_from(["", "", "a", "b", "none"])),
    st.builds(deployed, NAMES, CONTENTS, APPS, st.just(""), MOVES),
    st.builds(deployed, NAMES, st.just(""), APPS, st.just(""), MOVES),
    st.builds(deployed, NAMES, CONTENTS, APPS, st.just(""), MOVES, DEPLOYMENTS),
    st.builds(deployed, NAMES, st.just(""), st.just(""), st.just(""), MOVES, DEPLOYMENTS),
)


def test_rows_are_those_of_the_fold(module_migrated: str):

    @settings(max_examples=60)
    @given(st.lists(RECORDS, max_size=12), st.lists(st.integers(0, 12), max_size=3))
    def held(records: list[GraphDeployed], cuts: list[int]) -> None:
        with psycopg.connect(module_migrated) as connection:
            connection.execute("truncate graph_definition, graph_app, projection_offsets")
        catalogue = Catalogue()
        for record in records:
            catalogue.apply(record)
        project(GRAPHS, module_migrated, [encode(record) for record in records], cuts)
        assert rows(
            module_migrated,
            "select name, version, digest, document::text, coalesce(app, ''),"
            " (extract(epoch from deployed_at) * 1000)::bigint"
            " from graph_definition order by name, version",
        ) == [
            (v.name, v.number, v.digest, v.document, v.app, v.deployed_at_ms)
            for _, versions in sorted(catalogue.versions.items())
            for v in versions
        ]
        assert rows(
            module_migrated,
            "select name, app, deployment from graph_app where app is not null order by name",
        ) == [
            (name, app, catalogue.deployments.get(name))
            for name, app in sorted(catalogue.apps.items())
        ]

    held()


def test_a_record_that_cannot_be_read_is_kept_and_stops_no_other(migrated: str):
    project(GRAPHS, migrated, [b"\xff?", encode(deployed("review", "a", "", ""))], [])
    assert rows(migrated, "select topic, partition from projection_errors") == [PLACE]
    assert rows(migrated, "select name, version from graph_definition") == [("review", 1)]
