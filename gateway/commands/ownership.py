"""`headwater validate-ownership`: whether anybody but the workers is asked to execute runs."""

import click

from headwater.gateway.commands.api import Api, admin_options
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_json, print_rows, say

_PASS = "pass"  # noqa: S105 (no password)
_FAIL = "fail"


@click.command(
    epilog=examples(
        "headwater validate-ownership",
        "headwater validate-ownership --strict    in a pipeline of deployment",
    )
)
@click.option("--strict", is_flag=True, help="A warning ends with 1, too.")
@admin_options
@json_option
def validate_ownership(strict: bool, api: Api, as_json: bool) -> None:
    """Say whether anybody but the workers is asked to execute runs.

    Ends with 1 if so. Callbacks of queues at the gateway are counted for 15 minutes.
    HEADWATER_STRICT_OWNERSHIP says whether they are a failure or a warning.
    """
    found = api.get("/v1/diagnostics/ownership")
    if as_json:
        print_json(found)
    else:
        print_rows([{"what": name, "found": value} for name, value in found.items()],
                   ("what", "found"))  # fmt: skip
        if found["status"] != _PASS:
            say("A queue or webhook leads to the gateway, or an app host has another World.")
    if found["status"] == _FAIL or (strict and found["status"] != _PASS):
        raise click.exceptions.Exit(1)
