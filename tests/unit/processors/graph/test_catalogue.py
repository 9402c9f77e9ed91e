"""Which version a deployed definition becomes is what the log says, and nothing else."""

from headwater.processors.graph.catalogue import Catalogue, Deployed, NotDeployed, Taken
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.failures import GRAPH_CHANGED, GRAPH_OF_APP


def deployed(
    digest: str, *, name: str = "g", app: str = "", after: str = "", moves: int = 0
) -> GraphDeployed:
    document = f'{{"of": "{digest}"}}' if digest else ""
    return GraphDeployed(
        name=name, document=document, digest=digest, app=app, after=after, at_ms=7, moves=moves
    )


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
    assert [(each.number, each.digest) for each in catalogue.versions["g"]] == [
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
    assert catalogue.apply(deployed("", name="code", app="orders")) == Taken("orders")
    for name in ("g", "code"):
        refused = catalogue.apply(deployed("c", name=name))
        assert isinstance(refused, NotDeployed)
        assert refused.code == GRAPH_OF_APP
    assert [each.app for each in catalogue.versions["g"]] == ["", "orders"]
    assert "code" not in catalogue.versions
    assert catalogue.version("g", 2) is catalogue.newest("g")
    assert catalogue.version("g", 3) is None


def test_who_has_not_heard_of_an_activation_changes_nothing():
    catalogue = Catalogue()
    catalogue.apply(deployed("a", app="shop", moves=1))
    catalogue.apply(deployed("b", app="shop", moves=2))
    assert catalogue.apply(deployed("a", app="desk", moves=1)) == Taken("shop")
    assert [each.digest for each in catalogue.versions["g"]] == ["a", "b"]
    catalogue.apply(deployed("a", app="shop", moves=3))
    assert [each.digest for each in catalogue.versions["g"]] == ["a", "b", "a"]
