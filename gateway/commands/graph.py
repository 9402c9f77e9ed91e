"""`headwater graph`: definitions of graphs, checked here, deployed there, and drawn."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_json, print_rows, say
from headwater.gateway.commands.times import moment
from headwater.gateway.commands.workflow_service import ENVIRONMENT, Named, Service, service_options

if TYPE_CHECKING:
    from headwater.processors.graph.definition import DefinitionInvalid
    from headwater.processors.graph.graph import Graph
    from headwater.schemas.graph_answers import GraphVersion

_COLUMNS: Final = ("name", "version", "deployed", "app", "digest")
_WRONG: Final = ("file", "code", "path", "message")
_FILE: Final = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater graph validate review.json",
        "headwater graph deploy review.json",
        "headwater graph list",
        "headwater graph show review --format svg > review.svg",
    )
    + ENVIRONMENT,
)
def graph() -> None:
    """Check, deploy and look at graphs. Their instances: `headwater instances`."""


@graph.command(
    epilog=examples(
        "headwater graph validate review.json",
        "headwater graph validate graphs/*.json --json",
        "headwater graph validate -        a definition on standard input",
    )
)
@click.argument("files", nargs=-1, required=True, type=_FILE)
@json_option
def validate(files: tuple[Path, ...], as_json: bool) -> None:
    """Check definitions, on this machine alone: every mistake, with its code and path.

    Ends with 1 if there is any.
    """
    from headwater.processors.graph.definition import DefinitionInvalid  # noqa: PLC0415 (loads CEL)

    wrong: list[dict[str, str]] = []
    for file in files:
        try:
            _read(file)
        except DefinitionInvalid as error:
            wrong += _rows(file, error)
    if wrong or as_json:
        print_rows(wrong, _WRONG, as_json=as_json)
    if wrong:
        raise click.exceptions.Exit(1)
    if not as_json:
        say(f"{', '.join(map(str, files))}: nothing is wrong.")


@graph.command(
    epilog=examples(
        "headwater graph deploy review.json",
        "headwater graph deploy review.json --after DIGEST    of the version that it replaces",
    )
    + ENVIRONMENT
)
@click.argument("file", type=_FILE)
@click.option("--after", default="", metavar="DIGEST", help="Only if this is the newest version.")
@json_option
@service_options
def deploy(service: Service, file: Path, after: str, as_json: bool) -> None:
    """Deploy a definition: the next instance is made from it.

    The same definition twice is one version. Instances that there are stay on theirs.
    """
    from headwater.processors.graph.definition import (  # noqa: PLC0415 (loads CEL)
        DefinitionInvalid,
        to_dict,
    )

    try:
        document = to_dict(_read(file).definition)
    except DefinitionInvalid as error:
        print_rows(_rows(file, error), _WRONG, as_json=as_json)
        raise click.exceptions.Exit(1) from error

    _print([service.ask(lambda client: client.deploy(document, after=after))], as_json=as_json)


@graph.command(
    "list",
    epilog=examples("headwater graph list", "headwater graph list review    all its versions")
    + ENVIRONMENT,
)
@click.argument("name", required=False)
@json_option
@service_options
def list_graphs(service: Service, name: str | None, as_json: bool) -> None:
    """List the graphs that are deployed, each with its newest version; or the versions of one."""
    found = service.ask(
        lambda client: client.graphs() if name is None else client.graph_versions(name)
    )
    _print(found, as_json=as_json)
    if not found:
        say("No graph is deployed: `headwater graph deploy FILE` deploys one.")


@graph.command(
    epilog=examples(
        "headwater graph show review",
        "headwater graph show review --version 1",
        "headwater graph show review --format svg > review.svg",
        "headwater graph show review --instance review-1      with its tokens on it",
    )
    + ENVIRONMENT
)
@click.argument("name")
@click.option("--version", type=click.IntRange(min=1), help="Which version; else the newest.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "mermaid", "svg"]),
    help="As what. Default: json; an instance is drawn, as mermaid.",
)
@click.option("--instance", "instance_id", metavar="ID", help="As this instance runs it.")
@service_options
def show(
    service: Service, name: str, version: int | None, form: str | None, instance_id: str | None
) -> None:
    """Print a graph that is deployed, or draw it.

    With --instance it is the definition that its run began with, and its tokens are on it;
    `headwater instances draw` also draws it as it was.
    """
    if instance_id is not None:
        if version is not None or form == "json":
            raise click.UsageError("--instance is drawn: it takes no --version, and no json")
        sys.stdout.write(_drawn_instance(service, name, instance_id, form or "mermaid"))
        return

    document = service.ask(lambda client: client.graph(name, version)).definition
    if form is None or form == "json":
        print_json(document)
    else:
        sys.stdout.write(_drawn(document, form).rstrip("\n") + "\n")


def _drawn_instance(service: Service, name: str, instance_id: str, form: str) -> str:
    written: Literal["svg", "mermaid"] = "svg" if form == "svg" else "mermaid"
    return service.ask(lambda client: Named(name, instance_id).of(client).draw(written))


def _drawn(document: Any, form: str) -> str:  # noqa: ANN401 (JSON)
    from headwater.processors.graph.definition import read_definition  # noqa: PLC0415 (loads CEL)
    from headwater.processors.graph.mermaid import to_mermaid  # noqa: PLC0415
    from headwater.processors.graph.svg import to_svg  # noqa: PLC0415

    definition = read_definition(document)
    return to_svg(definition) if form == "svg" else to_mermaid(definition)


def _read(file: Path) -> "Graph":
    from headwater.processors.graph.graph import graph_of  # noqa: PLC0415 (loads CEL)

    if str(file) == "-":
        return graph_of(click.get_binary_stream("stdin").read())
    return graph_of(file.read_bytes())


def _rows(file: Path, error: "DefinitionInvalid") -> list[dict[str, str]]:
    return [
        {"file": str(file), "code": each.code, "path": each.path, "message": each.message}
        for each in error.problems
    ]


def _print(versions: "list[GraphVersion]", *, as_json: bool) -> None:
    rows = [
        {
            "name": each.name,
            "version": each.version,
            "deployed": each.deployed_at.isoformat() if as_json else moment(each.deployed_at),
            "digest": each.digest,
            "app": each.app,
        }
        for each in versions
    ]
    print_rows(rows, _COLUMNS, as_json=as_json, drops=("app", "deployed"))
