"""Reading settings from the environment, showing them, and passing them to child processes.

Settings come from environment variables that begin with `HEADWATER_`, and from command line flags,
which take precedence. A secret may come from a file, which the variable with the suffix `_FILE`
names; no other file is read.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, SecretStr, ValidationError, create_model
from pydantic_core import ErrorDetails

from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS, redacted
from headwater.gateway.settings.patterns import DESCRIPTIONS
from headwater.gateway.settings.providers import provider_names
from headwater.gateway.settings.settings import PREFIX, Secrets, Settings, revealed, secrets_name

#: Settings that may contain a password.
_DSNS: Final = ("postgres", "steps_postgres")
#: Suffix of the variable that names the file of a secret.
_FILE: Final = "_FILE"

#: Variables with our prefix that are not settings of a process.
_NOT_SETTINGS: Final = frozenset(
    PREFIX + name
    for name in ("URL", "DEBUG", "HEADERS", "JARS", "API_KEY", "POSTGRES_PASSWORD", "GROUP_PROCESS")
)

#: Expectations of pydantic's errors, to complete `expected …, found …`.
_EXPECTED: Final[Mapping[str, str]] = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "literal_error": "one of {expected}",
    "string_pattern_mismatch": "{words}",
    "string_too_short": "text of at least {min_length} characters",
    "too_short": "text of at least {min_length} characters",
    "not_postgres": "postgresql://user:password@host/database",
    "not_networks": "networks such as 10.0.0.0/8, separated by commas",
    "not_address": "host:port, such as 0.0.0.0:9600",
    "not_servers": "host:port, several separated by commas",
    "bool_parsing": "true or false",
    "not_bucket": "a folder, or s3://bucket and perhaps a prefix",
    "not_pauses": "1 to 20 durations separated by commas, of at most 7 days each, such as "
    "5 seconds, 5 minutes, 2 hours",
    "not_retention": "durations separated by commas, each workflow once, such as order=90 days, "
    "report=never, 30 days",
    "not_cron": "a cron expression of five fields, such as 0 2 * * *, or nothing",
    "not_here": "http:// and a loopback address",
    "not_variables": "names of environment variables such as AWS_*,STRIPE_KEY, none of them "
    "beginning with HEADWATER_",
    "not_own_schema": "a schema of Headwater's own: not public, authors or one of "
    "Postgres, and not ending in _authors, _rebuilt or _steps",
    "not_apps": "apps separated by commas, each once; headwater, which is always served, alone",
}
#: Description of the signing secrets of an installed provider.
_SECRETS_DESCRIPTION: Final = (
    "Signing secrets of {0}, separated by commas; without one dev-{0}-secret on loopback (in its "
    "scheme's form, such as base64 after whsec_), and elsewhere every delivery is refused."
)


class SettingsInvalid(Exception):
    """Settings that cannot be used; the message has a line per problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DescribedSetting(NamedTuple):
    """A setting, as `headwater settings` shows it."""

    name: str
    variable: str
    value: str
    default: str
    meaning: str


def load_settings(**flags: Any) -> Settings:  # noqa: ANN401 (pydantic checks them)
    """Read the settings. Flags that are None are ignored.

    Raises:
        SettingsInvalid: Settings cannot be used; the message has a line per problem.
    """
    kind = _with_secrets_of(provider_names())
    present = {name: value for name, value in flags.items() if value is not None}
    try:
        return kind(**(_from_files(kind, os.environ) | present))
    except ValidationError as error:
        raise SettingsInvalid(tuple(map(_problem, error.errors()))) from error


def _from_files(kind: type[Settings], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that files contain.

    Raises:
        SettingsInvalid: A file cannot be read.
    """
    secrets: dict[str, str] = {}
    problems: list[str] = []
    for name, variable in secret_settings(kind).items():
        file = variables.get(variable + _FILE)
        if file and variables.get(variable):
            problems.append(f"{variable}{_FILE}: expected nothing with {variable}, found both")
        elif file:
            try:
                secrets[name] = Path(file).read_text("utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "not UTF-8"
                problems.append(f"{variable}{_FILE}: expected a file, found '{file}': {why}")
    if problems:
        raise SettingsInvalid(tuple(problems))
    return secrets


def secret_settings(kind: type[Settings]) -> dict[str, str]:
    """Return the variables of settings that are or contain secrets, by the settings' names."""
    return {
        name: PREFIX + name.upper()
        for name, field in kind.model_fields.items()
        if name in _DSNS or field.annotation in (SecretStr, tuple[SecretStr, ...])
    }


def _with_secrets_of(providers: Iterable[str]) -> type[Settings]:
    """Return the settings' type, with a setting for the secrets of every installed provider."""
    added: dict[str, Any] = {
        secrets_name(name): (
            Secrets,
            Field(default=(), description=_SECRETS_DESCRIPTION.format(name)),
        )
        for name in providers
        if secrets_name(name) not in Settings.model_fields
    }
    return create_model("Settings", __base__=Settings, **added) if added else Settings


def unknown_variables(settings: Settings, names: Iterable[str]) -> tuple[str, ...]:
    """Return one line per variable with our prefix that is no setting: maybe a typing error."""
    known = {PREFIX + name.upper() for name in type(settings).model_fields} | _NOT_SETTINGS
    known |= {variable + _FILE for variable in secret_settings(type(settings)).values()}
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in known)
    return tuple(map(partial(_unknown, known), unknown))


def _unknown(known: Iterable[str], name: str) -> str:
    near = get_close_matches(
        name.removeprefix(PREFIX), [candidate.removeprefix(PREFIX) for candidate in known], n=1
    )
    hint = f"; did you mean {PREFIX}{near[0]}?" if near else "; `headwater settings` lists them"
    return f"{name} is no setting, and changes nothing{hint}"


def environment(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables for a child process; secrets in the clear."""
    return {variable + _FILE: "" for variable in secret_settings(type(settings)).values()} | {
        PREFIX + name.upper(): ",".join(revealed(getattr(settings, name)))
        for name in type(settings).model_fields
    }


def describe(settings: Settings) -> list[DescribedSetting]:
    """Return every setting with its value, default and meaning; secrets are hidden."""
    secrets = secret_settings(type(settings))
    return [
        DescribedSetting(
            name=name,
            variable=PREFIX + name.upper(),
            value=_shown(name, getattr(settings, name), secrets),
            default=_shown(name, field.default, secrets),
            meaning=field.description or "",
        )
        for name, field in type(settings).model_fields.items()
    ]


def _shown(name: str, value: object, secrets: Collection[str]) -> str:
    """Return a value for display; a secret is hidden, except for the development secrets."""
    if name in secrets and name not in _DSNS:
        known = DEVELOPMENT_SECRETS.get(name)
        return ", ".join(
            f"{text} (development)" if text == known else text and "(secret)"
            for text in revealed(value)
        )
    return redacted(", ".join(revealed(value)))


def _problem(error: ErrorDetails) -> str:
    """Return a line: the variable, the expected value, the actual value."""
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{name}: expected the name of a setting; `headwater settings` lists them"
    template = _EXPECTED.get(error["type"], "another value ({type})")
    context = error.get("ctx", {})
    description = DESCRIPTIONS.get(context.get("pattern", ""))
    expected = template.format(type=error["type"], words=description, **context)
    secret = name.endswith(("_secrets", "_secret", "_password", "_key", "_keys"))
    value = error["input"]
    actual = "(secret)" if secret else repr(redacted(value) if isinstance(value, str) else value)
    return f"{PREFIX}{name.upper()}: expected {expected}, found {actual}"
