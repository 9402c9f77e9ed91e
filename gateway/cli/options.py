"""Options and arguments that several commands share, and the settings they make.

Settings are imported where they are used: importing them is slower than printing help.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from typing_extensions import override

from headwater.gateway.cli.output import say
from headwater.gateway.cli.results import Columns, Result, prints
from headwater.gateway.settings.addresses import SettingsUnusable

if TYPE_CHECKING:
    from headwater.gateway.settings.settings import Settings


class JsonArgument(click.ParamType):
    """A JSON value: `{"sku": "x"}`, `@params.json`, or `-` for standard input."""

    name = "JSON"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> "JsonValue":
        if isinstance(value, JsonValue):
            return value
        from headwater.processors.input_texts import TooDeep, within_levels  # noqa: PLC0415 (loads more than --help needs)

        text, where = self._text(str(value), param, ctx)
        try:
            value = json.loads(within_levels(text))
            # Python reads and writes what is not JSON: NaN, 1e400, lone surrogates.
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except TooDeep:
            self.fail(f"expected JSON{where}, found too many levels", param, ctx)
        except ValueError as error:
            hint = "" if where else "; in a shell, put it in single quotes"
            self.fail(f"expected JSON{where}, found {text[:60]!r}: {error}{hint}", param, ctx)
        return JsonValue(value)

    def _text(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the text, and its origin for error messages."""
        try:
            if value == "-":
                return click.get_text_stream("stdin", encoding="utf-8").read(), " on standard input"
            if value.startswith("@"):
                return Path(value[1:]).read_text(encoding="utf-8"), f" in {value[1:]}"
        except OSError as error:
            self.fail(f"expected to read {value}, found: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"expected {value} to be UTF-8", param, ctx)
        return value, ""


class JsonValue:
    """A JSON value; distinguishes null from no value."""

    def __init__(self, value: Any) -> None:  # noqa: ANN401 (any JSON)
        self.value = value


# -- pages

T = TypeVar("T")

#: Fetches a page of a size after a cursor: rows, and the cursor of the next page if there is one.
Page: TypeAlias = Callable[[int, str | None], tuple[Sequence[T], str | None]]

cursor_option = click.option("--cursor", help="Continue after an earlier listing's cursor.")


def limit_option(
    largest: int, first: str = "newest"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--limit`; `first` names the rows that come first."""
    return click.option(
        "--limit",
        type=click.IntRange(1, largest),
        default=50,
        show_default=True,
        help=f"How many, at most; the {first} come first.",
    )


def collect_pages(
    page: Page[T], *, limit: int, page_size: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return rows of as many pages as needed, and the cursor after them if there are more."""
    collected: list[T] = []
    while True:
        rows, cursor = page(min(page_size, limit - len(collected)), cursor)
        collected += rows
        if cursor is None or len(collected) >= limit:
            return collected, cursor


# -- options

F = TypeVar("F", bound=Callable[..., Any])

#: Path of a gateway's workflow service.
WORKFLOWS_PATH: Final = "/api/workflows"


def settings_from(**flags: object) -> "Settings":
    """Return the settings, flags before the environment; warns of unknown variables.

    Raises:
        SettingsUnusable: A setting is invalid.
    """
    from headwater.gateway.settings.environment import (  # noqa: PLC0415 (see above)
        SettingsInvalid,
        load_settings,
        unknown_variables,
    )

    try:
        settings = load_settings(**flags)
    except SettingsInvalid as error:
        raise SettingsUnusable("\n".join(error.problems)) from error
    for line in unknown_variables(settings, os.environ):
        say(f"headwater: {line}")
    return settings


def combined(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator; help lists them in this order."""

    def with_all(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return with_all


kafka_option: Final = click.option(
    "--kafka",
    metavar="HOST:PORT,…",
    help="Kafka brokers. Default: HEADWATER_KAFKA, else the embedded one on this machine.",
)

topic_options: Final = combined(
    click.option(
        "--partitions", type=int, help="Partitions of a topic. Default: HEADWATER_PARTITIONS."
    ),
    click.option(
        "--replication", type=int, help="Replicas of a topic. Default: HEADWATER_REPLICATION."
    ),
)

postgres_option: Final = click.option(
    "--postgres",
    metavar="DSN",
    help="Postgres. Default: HEADWATER_POSTGRES, else the embedded one on this machine.",
)

app_option: Final = click.option(
    "--app",
    metavar="MODULE[:NAME]",
    multiple=True,
    callback=lambda _context, _option, apps: ",".join(apps) or None,
    help="Workflows to run: a module, or a workflow or list of workflows in it; repeatable. "
    "Default: HEADWATER_APP.",
)

listen_options: Final = combined(
    click.option("--host", help="Address to listen on. Default: HEADWATER_HOST, else 127.0.0.1."),
    click.option(
        "--port", type=int, help="Port of the gateway. Default: HEADWATER_PORT, else 8080."
    ),
)

processes_option: Final = click.option(
    "--processes",
    type=int,
    metavar="N",
    help="Start N processes, which share the work; restart one that ends. Default: "
    "HEADWATER_PROCESSES, else one.",
)

data_dir_option: Final = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all data. Default: HEADWATER_DATA_DIR, else .headwater.",
)

url_option: Final = click.option(
    "--url",
    metavar="URL",
    envvar="HEADWATER_URL",
    help="URL of the gateway, https://host, or of its workflow service, "
    "https://host/api/workflows. Default: HEADWATER_URL, else that of HEADWATER_HOST and "
    "HEADWATER_PORT.",
)

#: `api.admin_options` passes commands the gateway that they name.
admin_flags: Final = combined(
    url_option,
    click.option("--admin-key", help="The operators' key. Default: HEADWATER_ADMIN_KEY."),
)

force_options: Final = combined(
    click.option("--force", is_flag=True, help="Continue even if open runs do not fit the code."),
    click.option("--reason", default="", metavar="TEXT", help="Why, with --force; it is audited."),
)


def check_forced(reason: str, *, force: bool) -> None:
    """Check that a reason is given with --force, and not without.

    Raises:
        click.UsageError: One of the options is missing.
    """
    if force is not bool(reason):
        raise click.UsageError("expected --force and --reason together, found one of them")


yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")

detach_option: Final = click.option("--detach", is_flag=True, help="Do not wait for its end.")


def confirm(effect: str, question: str, *, yes: bool = False) -> None:
    """Print what a command would do, and ask whether it may, unless `yes`.

    Raises:
        Abort: The answer is no.
        UsageError: No one could answer: standard input is not a terminal.
    """
    say(effect)
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):  # It is None if the shell has closed it.
        raise click.UsageError(
            f"expected --yes, or a terminal to confirm at, found neither: {effect}"
        )
    click.confirm(question, abort=True, err=True)


def examples(*lines: str) -> str:
    """Return an epilog of examples that click does not wrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


# -- `headwater settings`


@click.command(epilog=examples("headwater settings", "headwater settings --json"))
@prints
def settings() -> Result:
    """Show every setting: its variable, value, default and meaning. Secrets stay hidden."""
    from headwater.gateway.settings.environment import describe  # noqa: PLC0415 (loads more than --help needs)

    rows = [setting._asdict() for setting in describe(settings_from())]
    columns = Columns(("variable", "value", "default", "meaning"))
    return Result(answer=rows, tables=[columns.table(rows)])
