"""`headwater validate-ownership`: whether only workers are requested to execute runs."""

import click

from headwater.gateway.cli.api import Api, admin_options
from headwater.gateway.cli.options import examples, json_option
from headwater.gateway.cli.output import print_json, print_rows, say

_PASS = "pass"  # noqa: S105 (no password)
_FAIL = "fail"


@click.command(
    epilog=examples(
        "headwater validate-ownership",
        "headwater validate-ownership --strict    in a deployment pipeline",
    )
)
@click.option("--strict", is_flag=True, help="Exit 1 also on a warning.")
@admin_options
@json_option
def validate_ownership(strict: bool, api: Api, as_json: bool) -> None:
    """Check that only workers are requested to execute runs.

    Exits 1 if not. The gateway counts callbacks of queues for 15 minutes.
    HEADWATER_STRICT_OWNERSHIP sets whether they are a failure or a warning.
    """
    report = api.get("/v1/diagnostics/ownership")
    if as_json:
        print_json(report)
    else:
        print_rows([{"what": name, "found": value} for name, value in report.items()],
                   ("what", "found"))  # fmt: skip
        if report["status"] != _PASS:
            say("A queue or webhook posts to the gateway, or an app host has another World.")
    if report["status"] == _FAIL or (strict and report["status"] != _PASS):
        raise click.exceptions.Exit(1)
