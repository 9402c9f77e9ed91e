"""`headwater receipt`: a signed statement that a delivery was received."""

from pathlib import Path
from typing import Any, Final

import click
import msgspec
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples, settings_from
from headwater.gateway.cli.results import Result, fields, prints
from headwater.processors.auditor.receipts import Receipt, is_body, is_signed

_ISSUE: Final = "issue"


class _Receipts(Group):
    """A group whose commands may be replaced by the id of a delivery."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            args = [_ISSUE, *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Receipts,
    epilog=examples(
        "headwater receipt 0d1e…77ab > receipt.json      by the id of a delivery or a request",
        "headwater receipt verify receipt.json",
        "headwater receipt verify receipt.json --body body.json",
    ),
)
def receipt() -> None:
    """Issue and verify receipts of deliveries, signed with the first of HEADWATER_AUDIT_KEYS.

    A receipt states when the delivery was received, the SHA-256 of its bytes, its position in the
    log, and its outcome.
    """


@receipt.command(hidden=True, epilog=examples("headwater receipt 0d1e…77ab > receipt.json"))
@click.argument("delivery", metavar="ID")
@admin_options
@prints
def issue(delivery: str, api: Api) -> Result:
    """Print the receipt of a delivery, as JSON."""
    answer = api.get(path_of("admin", "deliveries", delivery) + "/receipt")
    hints = [] if answer["signature"] else ["It is not signed: HEADWATER_AUDIT_KEYS is empty."]
    text = msgspec.json.format(msgspec.json.encode(answer)).decode() + "\n"
    return Result(answer=answer, text=text, hints=hints)


@receipt.command(
    epilog=examples(
        "headwater receipt verify receipt.json",
        "headwater receipt verify receipt.json --body body.json    also the bytes of the delivery",
    )
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--body",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the bytes of the delivery, to compare their hash.",
)
@prints
def verify(file: Path, body: Path | None) -> Result:
    """Verify a receipt with HEADWATER_AUDIT_KEYS; exit code 1 if one of them did not sign it.

    Needs neither a gateway nor Kafka.
    """
    try:
        stated = msgspec.json.decode(file.read_bytes(), type=Receipt)
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"expected a receipt in {file}, found: {error}") from error
    keys = [key.get_secret_value() for key in settings_from().audit_keys]
    if not keys:
        raise click.UsageError("expected HEADWATER_AUDIT_KEYS, found none")
    problems = []
    if not is_signed(stated, keys):
        problems.append("none of HEADWATER_AUDIT_KEYS signed it, or it was changed")
    if body is not None and not is_body(stated, body.read_bytes()):
        problems.append(f"{body} is not the body of the delivery")
    shown: dict[str, Any] = msgspec.to_builtins(stated)
    return Result(
        answer={"valid": not problems, "problems": problems, "receipt": shown},
        tables=[fields(shown.items())],
        hints=problems or ["The receipt is signed."],
        failed=bool(problems),
    )
