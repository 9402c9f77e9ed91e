"""Which version a deployed definition becomes is what the log says, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.graph.catalogue import Catalogue, Deployed, NameOwner, NotDeployed
from headwater.schemas.deployments import GraphDeployed
from headwater.schemas.failures import GRAPH_CHANGED, GRAPH_OF_APP


def deployed(
    digest: str,
    *,
    name: str = "g",
    app: str = "",
    after: str = "",
    moves: int = 0,
    deployment: str = "",
) -> GraphDeployed:
    document = f'{{"of": "{digest}"}}' if digest else ""
    return GraphDeployed(
        name=name,
        document=document,
        digest=digest,
        app=app,
        after=after,
        at_ms=7,
        moves=moves,
        deployment=deployment,
    )


def of_versions(catalogue: Catalogue) -> list[tuple[str, str]]:
    return [(item.digest, item.app) for item in catalogue.versions.get("g", [])]


def test_a_definition_that_is_the_newest_already_is_no_new_version():
    catalogue = Catalogue()
    first = catalogue.apply(deployed("a"))
    again = catalogue.apply(deployed("a"))
    assert isinstance(first, Deployed)
    assert (first.version.number, first.new) == (1, True)
    assert again == Deployed(first.version, new=False)


def test_to_go_back_is_a_version_of_its_own():
    catalogue = Catalogue()
    for digest in ("a", "b", "a"):
        catalogue.apply(deployed(digest))
    assert [(item.number, item.digest) for item in catalogue.versions["g"]] == [
        (1, "a"),
        (2, "b"),
        (3, "a"),
    ]


def test_of_two_who_replace_the_same_version_one_is_refused():
    catalogue = Catalogue()
    catalogue.apply(deployed("a"))
    assert isinstance(catalogue.apply(deployed("b", after="a")), Deployed)
    refused = catalogue.apply(deployed("c", after="a"))
    assert isinstance(refused, NotDeployed)
    assert refused.code == GRAPH_CHANGED


def test_a_name_that_an_app_has_is_deployed_by_the_app_alone():
    catalogue = Catalogue()
    catalogue.apply(deployed("a"))
    assert isinstance(catalogue.apply(deployed("b", app="orders")), Deployed)
    assert catalogue.apply(deployed("", name="code", app="orders")) == NameOwner("orders")
    for name in ("g", "code"):
        refused = catalogue.apply(deployed("c", name=name))
        assert isinstance(refused, NotDeployed)
        assert refused.code == GRAPH_OF_APP
    assert [item.app for item in catalogue.versions["g"]] == ["", "orders"]
    assert "code" not in catalogue.versions
    assert catalogue.version("g", 2) is catalogue.newest("g")
    assert catalogue.version("g", 3) is None


def test_who_has_not_heard_of_an_activation_changes_nothing():
    catalogue = Catalogue()
    catalogue.apply(deployed("a", app="shop", moves=1))
    catalogue.apply(deployed("b", app="shop", moves=2))
    assert catalogue.apply(deployed("a", app="desk", moves=1)) == NameOwner("shop")
    assert [item.digest for item in catalogue.versions["g"]] == ["a", "b"]
    catalogue.apply(deployed("a", app="shop", moves=3))
    assert [item.digest for item in catalogue.versions["g"]] == ["a", "b", "a"]


def test_a_deployment_gives_a_name_back_and_what_had_it_before_is_newest_again():
    catalogue = Catalogue()
    catalogue.apply(deployed("a"))
    catalogue.apply(deployed("b", app="shop", moves=1, deployment="dep_1"))
    assert isinstance(catalogue.apply(deployed("c")), NotDeployed)
    free = deployed("", moves=2, deployment="dep_2")
    for _ in range(2):
        catalogue.apply(free)
        assert of_versions(catalogue) == [("a", ""), ("b", "shop"), ("a", "")]
    assert isinstance(catalogue.apply(deployed("c")), Deployed)
    # Of a worker that has not heard of the way back.
    catalogue.apply(deployed("b", app="shop", moves=1, deployment="dep_1"))
    assert of_versions(catalogue)[-1] == ("c", "")
    assert catalogue.apps == {}


def test_the_same_definition_of_another_is_a_version_of_its_own():
    catalogue = Catalogue()
    catalogue.apply(deployed("a", app="shop", moves=1, deployment="dep_1"))
    catalogue.apply(deployed("", moves=2, deployment="dep_2"))
    result = catalogue.apply(deployed("a"))
    assert isinstance(result, Deployed)
    assert (result.new, result.version.app) == (True, "")


def test_a_deployment_gives_back_no_name_of_an_app():
    catalogue = Catalogue()
    catalogue.apply(deployed("b", app="shop", moves=1, deployment="dep_1"))
    catalogue.apply(deployed("a", app="desk", moves=2))
    catalogue.apply(deployed("", moves=2, deployment="dep_2"))
    assert catalogue.apps == {"g": "desk"}


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12), st.data())
def test_the_last_activation_holds_in_whatever_order_workers_say_so(
    said: list[tuple[int, bool]], data: st.DataObject
):
    """Each says what was active after so many activations, unless that is known."""
    has = data.draw(st.lists(st.booleans(), min_size=5, max_size=5))
    catalogue = Catalogue()
    catalogue.apply(deployed("a"))
    for moves, late in [*said, (4, False)]:
        record = deployed(
            "b" if has[moves] else "",
            app="shop" if has[moves] else "",
            moves=moves,
            deployment=f"dep_{moves}",
        )
        # One that is late looked before others wrote.
        if late or not catalogue.has(record):
            catalogue.apply(record)
        assert catalogue.has(record)
    last = [("b", "shop")] if has[4] else [("a", "")]
    assert of_versions(catalogue)[-1:] == last
    assert catalogue.deployments == ({"g": "dep_4"} if has[4] else {})
