"""`headwater workflows` and `graph`: list workflows; check, deploy and draw graphs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.output import print_json
from headwater.gateway.cli.results import Columns, Result, listing, prints
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    instance_named,
    service_options,
)
from headwater.gateway.client.texts import moment

if TYPE_CHECKING:
    from headwater.gateway.client.sync_client import SyncClient
    from headwater.processors.graph.definition import Problem
    from headwater.processors.graph.graph import Graph
    from headwater.schemas.answers import WorkflowListed
    from headwater.schemas.graph_answers import DefinitionWarning, GraphVersion


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

    Exits 1 if there is an error. Warnings are about parts that will not do what their author
    expects, such as nodes that no token reaches.
    """
    from headwater.processors.graph.definition import DefinitionInvalid  # noqa: PLC0415 (loads CEL)

    errors: list[dict[str, str]] = []
    warnings: list[dict[str, str]] = []
    for file in files:
        try:
            warnings += _problem_rows(_read(file).warnings, file)
        except DefinitionInvalid as error:
            errors += _problem_rows(error.problems, file)
    return _problems(errors, warnings, ok=f"{', '.join(map(str, files))}: nothing is wrong.")


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
        return _problems(_problem_rows(error.problems, file))
    deployed = client.run(client.deploy(document, after=after))
    warnings = _problem_rows(deployed.warnings)
    return _versions([deployed], warnings)


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


def _problem_rows(
    problems: "Iterable[Problem | DefinitionWarning]", file: Path | None = None
) -> list[dict[str, str]]:
    return [
        ({} if file is None else {"file": str(file)})
        | {"code": problem.code, "path": problem.path, "message": problem.message}
        for problem in problems
    ]


def _problems(
    errors: list[dict[str, str]], warnings: Sequence[dict[str, str]] = (), ok: str = ""
) -> Result:
    return Result(
        answer={"errors": errors, "warnings": warnings},
        tables=[_PROBLEMS.table(errors)] if errors else [],
        hints=[*([] if errors else [ok]), *_hints(warnings)],
        failed=bool(errors),
    )


def _hints(warnings: Iterable[Mapping[str, str]]) -> list[str]:
    return [
        f"Warning: {row['code']} at {row['path']}: {row['message']}"
        + (f" ({row['file']})" if "file" in row else "")
        for row in warnings
    ]


def _versions(
    versions: "Sequence[GraphVersion]", warnings: Sequence[dict[str, str]] | None = None
) -> Result:
    """Return the result for versions; for a deployment with its warnings."""
    answer: list[dict[str, Any]] = [
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
    if warnings is not None:
        deployed = [row | {"warnings": warnings} for row in answer]
        return Result(answer=deployed, tables=[_GRAPHS.table(rows)], hints=_hints(warnings))
    none = "No graph is deployed: `headwater graph deploy FILE` deploys one."
    return listing(answer, _GRAPHS.table(rows), none=none)
