"""`headwater workflows` and `graph`: list workflows; check, deploy and draw graphs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.output import moment, print_json
from headwater.gateway.cli.results import Columns, Result, listing, prints
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    instance_named,
    service_options,
)

if TYPE_CHECKING:
    from headwater.gateway.client.sync_client import SyncClient
    from headwater.processors.graph.definition import DefinitionInvalid
    from headwater.processors.graph.graph import Graph
    from headwater.schemas.answers import WorkflowListed
    from headwater.schemas.graph_answers import GraphVersion


@click.group(
    cls=Group,
    epilog=examples(
        "headwater workflows list",
        "headwater workflows list --url https://host/api/workflows",
        "headwater instances list -w order      the instances of one workflow",
    )
    + ENVIRONMENT,
)
def workflows() -> None:
    """List workflows. Their instances: `headwater instances`."""


@workflows.command(
    "list",
    epilog=examples(
        "headwater workflows list",
        'headwater workflows list --url https://host/api/workflows -H "X-Tenant: a"',
    )
    + ENVIRONMENT,
)
@prints
@service_options
def list_workflows(client: "SyncClient") -> Result:
    """List the workflows that workers have or had, and those that are deployed.

    Shows for a workflow with a concurrency limit how many runs have a slot, and how many wait for
    one. JSON has also the JSON Schema of its params, if it declares one, and the longest queues of
    its limit.
    """
    listed = client.run(client.workflows())
    limited = any(workflow.concurrency for workflow in listed)
    more = ("limit", "per", "running", "waiting") if limited else ()
    columns = Columns(("workflow", *more))
    return listing(
        listed,
        columns.table(map(_workflow_row, listed)),
        none="There are no workflows: `headwater worker --app …` runs those of an app.",
    )


def _workflow_row(workflow: "WorkflowListed") -> dict[str, object]:
    limit = workflow.concurrency
    if limit is None:
        return {"workflow": workflow.name}
    return {
        "workflow": workflow.name,
        "limit": limit.limit,
        "per": limit.key,
        "running": limit.held,
        "waiting": limit.waiting,
    }


# -- `headwater graph`

_GRAPHS: Final = Columns(
    ("name", "version", "deployed", "app", "digest"), drops=("app", "deployed")
)
_MOVED: Final = Columns(("token", "status", "node", "to", "problem"))
_PROBLEMS: Final = Columns(("file", "code", "path", "message"))
_FILE: Final = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater graph validate review.json",
        "headwater graph deploy review.json",
        "headwater graph list",
        "headwater graph show review --format svg > review.svg",
        "headwater graph migrate review/review-1 --to 2 --dry-run",
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
@prints
def validate(files: tuple[Path, ...]) -> Result:
    """Check definitions, without a server: lists every problem with its code and path.

    Exits 1 if there is a problem.
    """
    from headwater.processors.graph.definition import DefinitionInvalid  # noqa: PLC0415 (loads CEL)

    problems: list[dict[str, str]] = []
    for file in files:
        try:
            _read(file)
        except DefinitionInvalid as error:
            problems += _problem_rows(file, error)
    return _problems(problems, ok=f"{', '.join(map(str, files))}: nothing is wrong.")


@graph.command(
    epilog=examples(
        "headwater graph deploy review.json",
        "headwater graph deploy review.json --after DIGEST    only if it replaces this version",
    )
    + ENVIRONMENT
)
@click.argument("file", type=_FILE)
@click.option("--after", default="", metavar="DIGEST", help="Only if this is the newest version.")
@prints
@service_options
def deploy(client: "SyncClient", file: Path, after: str) -> Result:
    """Deploy a definition: later instances run this version.

    The same definition again is the same version. Existing instances stay on theirs.
    """
    from headwater.processors.graph.definition import DefinitionInvalid, to_dict  # noqa: PLC0415 (loads CEL)

    try:
        document = to_dict(_read(file).definition)
    except DefinitionInvalid as error:
        return _problems(_problem_rows(file, error))
    return _versions([client.run(client.deploy(document, after=after))])


@graph.command(
    "list",
    epilog=examples("headwater graph list", "headwater graph list review    all its versions")
    + ENVIRONMENT,
)
@click.argument("name", required=False)
@prints
@service_options
def list_graphs(client: "SyncClient", name: str | None) -> Result:
    """List the deployed graphs with their newest versions, or the versions of one."""
    versions = client.run(client.graphs() if name is None else client.graph_versions(name))
    return _versions(versions)


@graph.command(
    epilog=examples(
        "headwater graph show review",
        "headwater graph show review --version 1",
        "headwater graph show review --format svg > review.svg",
        "headwater graph show review --instance review-1      with the tokens of an instance",
    )
    + ENVIRONMENT
)
@click.argument("name")
@click.option("--version", type=click.IntRange(min=1), help="Which version; else the newest.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "mermaid", "svg"]),
    help="Output format. Default: json; mermaid for an instance.",
)
@click.option(
    "--instance", "instance_id", metavar="ID", help="The version that this instance runs."
)
@service_options
def show(
    client: "SyncClient",
    name: str,
    version: int | None,
    format_: str | None,
    instance_id: str | None,
) -> None:
    """Print or draw a deployed graph.

    With --instance it is the version that its run began with, drawn with its tokens; `headwater
    instances draw` also draws earlier states.
    """
    if instance_id is not None:
        if version is not None or format_ == "json":
            raise click.UsageError("expected --instance without --version and --format json")
        sys.stdout.write(_drawn_instance(client, name, instance_id, format_ or "mermaid"))
        return

    document = client.run(client.graph(name, version)).definition
    if format_ is None or format_ == "json":
        print_json(document)
    else:
        sys.stdout.write(_drawn(document, format_).rstrip("\n") + "\n")


@graph.command(
    epilog=examples(
        "headwater graph migrate review/review-1 --to 2 --dry-run     where each token would go",
        "headwater graph migrate review/review-1 --to 2",
        "headwater graph migrate review/review-1 --to 2 --map vote=judge --map tally=count",
    )
    + ENVIRONMENT
)
@instance_named
@click.option("--to", required=True, type=click.IntRange(min=1), help="Number of the version.")
@click.option(
    "--map",
    "renames",
    multiple=True,
    metavar="OLD=NEW",
    help="A node of the run's definition, and where its tokens go. Default: the same ref.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing.")
@prints
@service_options
def migrate(
    client: "SyncClient",
    *,
    instance: InstanceName,
    to: int,
    renames: tuple[str, ...],
    dry_run: bool,
) -> Result:
    """Move a running instance to another version of its graph.

    Lists the live tokens, the nodes where they go, and what speaks against it. Nothing changes if
    one token has no place there. Exits 1 if a dry run shows such a token.
    """
    renamed = dict(map(_rename, renames))
    plan = client.run(instance.handle(client).migrate(to, map=renamed, dry_run=dry_run))
    rows = [
        {
            "token": token.id,
            "status": token.status,
            "node": token.node_ref,
            "to": token.to_node_ref,
            "problem": token.problem,
        }
        for token in plan.tokens
    ]
    left_out = [f"… {plan.tokens_left_out} more tokens"] if plan.tokens_left_out else []
    done = f"{instance} runs version {to} now."
    if dry_run:
        done = "It is possible." if plan.possible else "It is not possible."
    return Result(
        answer=plan,
        tables=[_MOVED.table(rows)] if rows else [],
        hints=[*left_out, *plan.problems, done],
        failed=dry_run and not plan.possible,
    )


def _rename(text: str) -> tuple[str, str]:
    node, separator, to = text.partition("=")
    if not (node and separator and to):
        raise click.UsageError(f"--map: expected OLD=NEW, found {text!r}")
    return node, to


def _drawn_instance(client: "SyncClient", name: str, instance_id: str, format_: str) -> str:
    drawn_as: Literal["svg", "mermaid"] = "svg" if format_ == "svg" else "mermaid"
    return client.run(InstanceName(name, instance_id).handle(client).draw(drawn_as))


def _drawn(document: Any, format_: str) -> str:  # noqa: ANN401 (JSON)
    from headwater.processors.graph.definition import read_definition  # noqa: PLC0415 (loads CEL)
    from headwater.processors.graph.diagrams import to_mermaid, to_svg  # noqa: PLC0415 (loads CEL)

    definition = read_definition(document)
    return to_svg(definition) if format_ == "svg" else to_mermaid(definition)


def _read(file: Path) -> "Graph":
    from headwater.processors.graph.graph import graph_of  # noqa: PLC0415 (loads CEL)

    if str(file) == "-":
        return graph_of(click.get_binary_stream("stdin").read())
    return graph_of(file.read_bytes())


def _problem_rows(file: Path, error: "DefinitionInvalid") -> list[dict[str, str]]:
    return [
        {"file": str(file), "code": problem.code, "path": problem.path, "message": problem.message}
        for problem in error.problems
    ]


def _problems(rows: list[dict[str, str]], ok: str = "") -> Result:
    tables = [_PROBLEMS.table(rows)] if rows else []
    return Result(answer=rows, tables=tables, hints=[] if rows else [ok], failed=bool(rows))


def _versions(versions: "list[GraphVersion]") -> Result:
    answer = [
        {
            "name": version.name,
            "version": version.version,
            "deployed": version.deployed_at.isoformat(),
            "digest": version.digest,
            "app": version.app,
        }
        for version in versions
    ]
    rows = [
        {**row, "deployed": moment(version.deployed_at)}
        for row, version in zip(answer, versions, strict=True)
    ]
    none = "No graph is deployed: `headwater graph deploy FILE` deploys one."
    return listing(answer, _GRAPHS.table(rows), none=none)
