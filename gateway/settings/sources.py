"""Sources of the settings, and their signing secrets.

Without a file of sources, every provider is a source of its own name, with secrets in a setting.
The pipeline needs only the sources; processes that receive or sign read their secrets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from headwater.gateway.settings.exposure import (
    DEVELOPMENT_SECRETS,
    SECRET_MIN,
    development_secret,
    is_loopback,
    weakness_of,
)
from headwater.gateway.settings.providers import installed_providers, provider_names
from headwater.gateway.settings.settings import PREFIX, Settings, secrets_variable
from headwater.processors.signatures import key_of, secret_of
from headwater.processors.sources import (
    AnySource,
    Source,
    SourcesInvalid,
    kafka_sources,
    read_sources,
    source_of,
    webhook_providers,
    webhook_sources,
)
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.topics import is_own_topic

#: The sources file of `headwater up`: one source per scheme, for this machine only.
DEVELOPMENT_SOURCES: Final = str(files("headwater.gateway.local") / "sources.toml")


def with_development_sources(settings: Settings) -> Settings:
    """Return the settings; those of loopback without a file of sources get the development one."""
    if settings.sources or not is_loopback(settings.host):
        return settings
    return settings.model_copy(update={"sources": DEVELOPMENT_SOURCES})


def sources_of(settings: Settings) -> tuple[AnySource, ...]:
    """Return the sources, without their secrets.

    Raises:
        SourcesInvalid, ProviderInvalid: The file or a provider is invalid.
    """
    providers = installed_providers()
    if not settings.sources:
        return tuple(map(source_of, webhook_providers(providers)))
    try:
        return read_sources(Path(settings.sources).read_text("utf-8"), providers)
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(settings, [f"expected a file of sources, found: {error}"]) from error
    except SourcesInvalid as error:
        raise _invalid(settings, [error.message]) from error


def secret_variables(settings: Settings) -> frozenset[str]:
    """Return the variables that contain sources' secrets; none if the file cannot be read."""
    try:
        sources = sources_of(settings)
    except HeadwaterError:
        return frozenset()
    locations = [source.secret_locations for source in webhook_sources(sources)]
    return frozenset(name for location in locations for name in location.variables)


def sources_with_secrets(settings: Settings, environment: Mapping[str, str]) -> tuple[Source, ...]:
    """Return the sources of webhooks with their secrets, after checking all of them.

    Raises:
        SourcesInvalid: A source is invalid; the message lists every problem of every source.
        ProviderInvalid: A provider is invalid.
    """
    configured = sources_of(settings)
    problems = [
        f"source {source.name}: expected {PREFIX}SCHEMA_REGISTRY for a topic in Avro, found none"
        for source in kafka_sources(configured)
        if source.format == "avro" and not settings.schema_registry
    ]
    problems += [
        f"source {source.name}: expected a topic of another program, found Headwater's own "
        f"{source.topic}"
        for source in kafka_sources(configured)
        if is_own_topic(settings.topic_prefix, source.topic)
    ]
    sources = []
    for source in webhook_sources(configured):
        own_problems: list[str] = []
        secrets = _secrets(source, settings, environment, own_problems)
        own_problems += _unusable(source, secrets, settings)
        problems += [f"source {source.name}: {problem}" for problem in own_problems]
        sources.append(replace(source, secrets=secrets))
    if problems:
        raise _invalid(settings, problems)
    return tuple(sources)


def _secrets(
    source: Source, settings: Settings, environment: Mapping[str, str], problems: list[str]
) -> tuple[str, ...]:
    locations = source.secret_locations
    if not locations:
        return _of_provider(source, settings)
    secrets = list(locations.inline)
    for name in locations.variables:
        secrets += _listed(f"secret_env, {name}", environment.get(name, "").split(","), problems)
    for name in locations.files:
        path = Path(settings.sources).parent / name
        secrets += _listed(f"secret_file, {path}", _lines(path, problems), problems)
    return tuple(secrets)


def _of_provider(source: Source, settings: Settings) -> tuple[str, ...]:
    """Return the secrets of the provider's setting; on loopback the development one without any."""
    name = source.provider.name
    configured = settings.secrets_of(name)
    if configured or not is_loopback(settings.host):
        return configured
    return (secret_of(source.scheme, development_secret(name)),)


def _lines(path: Path, problems: list[str]) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"secret_file: {error}")
        return []


def _listed(location: str, texts: Iterable[str], problems: list[str]) -> list[str]:
    secrets = [text.strip() for text in texts if text.strip()]
    if not secrets:
        problems.append(f"{location}: expected a secret, found none")
    return secrets


def _unusable(source: Source, secrets: tuple[str, ...], settings: Settings) -> Iterable[str]:
    """Yield the problems of secrets; the texts do not contain them."""
    development = [development_secret(name) for name in provider_names()]
    prefixed = (secret_of(source.scheme, secret) for secret in development)
    known = (*DEVELOPMENT_SECRETS.values(), *_development_secrets(), *development, *prefixed)
    setting = "" if source.secret_locations else f"{secrets_variable(source.provider.name)}, "
    for number, secret in enumerate(secrets, 1):
        which = f"{setting}secret {number}"
        if not key_of(source.scheme, secret):
            yield f"{which}: expected base64 after {source.scheme.secret_prefix}"
        elif is_loopback(settings.host):
            continue
        elif weakness_of(secret, known):
            yield (
                f"{which}: expected a secret of your own that cannot be guessed, of at least "
                f"{SECRET_MIN} characters, "
                f"while {PREFIX}HOST is '{settings.host}', which others can reach"
            )


@cache
def _development_secrets() -> tuple[str, ...]:
    sources = read_sources(Path(DEVELOPMENT_SOURCES).read_text("utf-8"), {})
    webhooks = webhook_sources(sources)
    return tuple(secret for source in webhooks for secret in source.secret_locations.inline)


def _invalid(settings: Settings, problems: list[str]) -> SourcesInvalid:
    lines = "\n".join(problems)
    named = settings.sources not in ("", DEVELOPMENT_SOURCES)  # Users did not set the latter.
    where = f"{PREFIX}SOURCES, {settings.sources}:\n" if named else ""
    return SourcesInvalid(f"{where}{lines}")
