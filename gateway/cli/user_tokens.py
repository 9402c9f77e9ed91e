"""Users' tokens: printed by `headwater token`, verified by the gateway."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from headwater.gateway.cli.options import data_dir_option, examples, settings_from
from headwater.gateway.cli.results import Result, prints
from headwater.gateway.settings.exposure import DEVELOPMENT_ISSUER, is_loopback
from headwater.processors.runs.durations import milliseconds
from headwater.streams.clock import monotonic, now_ms

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.gateway.api.tokens.verifier import Verifier
    from headwater.gateway.api.users.ports import UserServices
    from headwater.gateway.settings.settings import Settings


def for_users(settings: "Settings") -> "UserServices":
    """Return the gateway's dependencies for users."""
    from headwater.gateway.api.users.ports import UserServices  # noqa: PLC0415 (slow)
    from headwater.gateway.builtin.blobs.folder import blobs_at  # noqa: PLC0415 (slow)
    from headwater.gateway.builtin.terra.client import Terra  # noqa: PLC0415 (slow)

    return UserServices(
        tokens=verifier_of(settings, clock=now_ms, steady_s=monotonic),
        # A client is waiting for the answer, so there is only one retry.
        terra=Terra(settings.terra, draw=lambda: 1.0, wall_s=lambda: now_ms() / 1000, attempts=2),
        blobs=blobs_at(settings.blobs_at),
    )


def verifier_of(
    settings: "Settings", *, clock: Callable[[], int], steady_s: Callable[[], float]
) -> "Verifier | None":
    """Return the verifier of users' tokens; None if the settings name no keys."""
    from headwater.gateway.api.tokens.key_source import KeySource, keys_at  # noqa: PLC0415 (slow)
    from headwater.gateway.api.tokens.verifier import Verifier  # noqa: PLC0415 (slow)

    if not settings.jwks:
        return None
    return Verifier(
        KeySource(keys_at(settings.jwks), steady_s),
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        user_prefix=settings.user_prefix,
        clock=clock,
    )


def with_development_issuer(settings: "Settings") -> "Settings":
    """Return the settings; those of loopback without an issuer get the development issuer."""
    from headwater.gateway.api.tokens.development import AUDIENCE, make_issuer  # noqa: PLC0415 (slow)

    if settings.jwks or not is_loopback(settings.host):
        return settings
    return settings.model_copy(
        update={
            "jwks": str(make_issuer(settings.data_dir).absolute()),
            "jwt_issuer": DEVELOPMENT_ISSUER,
            "jwt_audience": AUDIENCE,
        }
    )


def _lifetime_s(_context: click.Context, _option: click.Parameter, text: str) -> int:
    try:
        # A bare number is seconds here, as in JWTs.
        lifetime_s = int(text) if text.isdecimal() else milliseconds(text) // 1000
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not 1 <= lifetime_s <= _LIFETIME_MAX_S:
        raise click.BadParameter(f"expected 1 second to 366 days, found {text!r}")
    return lifetime_s


_LIFETIME_MAX_S = 366 * 86_400


@click.command(
    epilog=examples(
        "headwater token user_amara",
        "headwater token user_amara --expires 7d",
        'curl -H "Authorization: Bearer $(headwater token user_amara)" '
        "http://127.0.0.1:8080/v1/sync",
    )
)
@click.argument("user_id", metavar="USER")
@click.option(
    "--expires",
    "lifetime_s",
    metavar="SPAN",
    default="1h",
    show_default=True,
    callback=_lifetime_s,
    help="How long it is valid: 15m, 8h, 7d, or a number of seconds.",
)
@data_dir_option
@prints
def token(user_id: str, lifetime_s: int, data_dir: "Path | None") -> Result:
    """Print a user's token, of the development issuer of `headwater up`.

    It is valid on this machine only. With HEADWATER_JWKS, tokens come from your own issuer.
    """
    from headwater.gateway.api.tokens.development import NoIssuer, token_of  # noqa: PLC0415 (slow)
    from headwater.gateway.api.tokens.verifier import user_id_problem  # noqa: PLC0415 (slow)

    settings = settings_from(data_dir=data_dir)
    if settings.jwks and settings.jwt_issuer != DEVELOPMENT_ISSUER:
        raise click.ClickException(
            "expected no HEADWATER_JWKS, found one: tokens come from the issuer that it names"
        )
    if not is_loopback(settings.host):
        raise click.ClickException(
            f"expected HEADWATER_HOST to be a loopback address, found '{settings.host}': the "
            "development issuer is for development on this machine"
        )
    problem = user_id_problem("USER", user_id, settings.user_prefix)
    if problem:
        raise click.UsageError(problem)
    try:
        text = token_of(settings.data_dir, user_id, now_s=now_ms() // 1000, lifetime_s=lifetime_s)
    except NoIssuer as error:
        raise click.ClickException(str(error)) from error
    answer = {"token": text, "user_id": user_id, "expires_in": lifetime_s}
    return Result(answer=answer, text=f"{text}\n")
