"""`headwater auditor`: verify the log all the time, and show what was found."""

from typing import Any, Final

import click

from headwater.gateway.cli.api import Api, admin_options
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples, kafka_option, postgres_option, settings_from
from headwater.gateway.cli.output import counted
from headwater.gateway.cli.results import Columns, Result, fields, prints
from headwater.streams.clock import now_ms

_FINDINGS: Final = Columns(
    ("law", "subject", "first_seen", "last_seen", "ended", "detail"),
    drops=("last_seen", "ended"),
    styles={"law": {}},
)
_SHOWN: Final = (
    "auditor",
    "at",
    "since",
    "deliveries",
    "lost",
    "waiting",
    "parked",
    "unproven",
    "history_records",
    "step_results",
    "ignored_records",
    "rows",
)


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=examples(
        "headwater auditor            verify the log until Ctrl-C",
        "headwater auditor status     what it has verified and found",
    ),
)
@kafka_option
@postgres_option
@click.pass_context
def auditor(context: click.Context, kafka: str | None, postgres: str | None) -> None:
    """Prove all the time, from the log alone, that no delivery and no step was lost.

    It verifies that every delivery has one outcome, that histories have no gaps and one result for
    each step, that rows in Postgres are those of the log, and that offsets only grow. One auditor
    works at a time; another one stands by. `headwater up` runs it in its projector, as does
    `headwater project` with HEADWATER_AUDITOR=true.
    """
    if context.invoked_subcommand is None:
        from headwater.gateway.cli.projecting import run_auditing  # noqa: PLC0415 (loads slowly)

        run_auditing(settings_from(kafka=kafka, postgres=postgres), clock=now_ms)


@auditor.command(
    epilog=examples(
        "headwater auditor status",
        "headwater auditor status --json | jq '.lost'",
    )
)
@admin_options
@prints
def status(api: Api) -> Result:
    """Show what the auditor has verified, and its findings; exit code 1 if one is open."""
    answer = api.get("/admin/auditor")
    return Result(
        answer=answer,
        tables=[
            fields((name, answer[name]) for name in _SHOWN),
            *([_FINDINGS.table(answer["findings"], "findings")] if answer["findings"] else []),
        ],
        hints=[summary(answer)],
        failed=any(finding["ended"] is None for finding in answer["findings"]),
    )


def summary(answer: dict[str, Any]) -> str:
    """Return the result in one sentence."""
    verified = f"{answer['lost']} lost of {counted(answer['deliveries'], 'delivery', 'deliveries')}"
    unsettled = f"{answer['waiting']} waiting, {answer['parked']} parked"
    reading = "" if answer["caught_up"] else "; it still reads what was appended earlier"
    return f"{verified} ({unsettled}){reading}."
