"""The catalogue of providers: Headwater's own, and those of installed packages.

A package adds a provider with an entry point of the group `headwater.providers`, which has the
provider's name:

    [project.entry-points."headwater.providers"]
    github = "headwater_github.provider:GITHUB"

Settings need only the names, so the providers are loaded when they are needed.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from headwater.schemas.errors import Disposition, HeadwaterError

if TYPE_CHECKING:
    from headwater.processors.providers.provider import Provider, Providers

GROUP: Final = "headwater.providers"

#: Headwater's own providers, of which deliveries are posted.
BUILT_IN: Final = ("terra",)


class ProviderInvalid(HeadwaterError):
    """A provider cannot be used; the message names its entry point."""

    disposition = Disposition.HALT
    code = "provider_invalid"


def provider_names() -> tuple[str, ...]:
    """Return the names of all providers, without loading them."""
    return (*BUILT_IN, *sorted({point.name for point in entry_points(group=GROUP)}))


def installed_providers() -> "Providers":
    """Load all providers, including Headwater's own.

    Raises:
        ProviderInvalid: A provider cannot be used.
    """
    from headwater.processors.providers.headwater import HEADWATER  # noqa: PLC0415 (see above)
    from headwater.processors.providers.provider import catalogue_of  # noqa: PLC0415 (see above)
    from headwater.processors.providers.terra.provider import TERRA  # noqa: PLC0415 (see above)
    from headwater.schemas.installed_tables import ALL_TABLES  # noqa: PLC0415 (see above)
    from headwater.schemas.installed_tables import GROUP as TABLES_GROUP  # noqa: PLC0415 (see above)

    try:
        providers = catalogue_of([HEADWATER, TERRA, *map(_load, entry_points(group=GROUP))])
    except ValueError as error:
        raise ProviderInvalid(f"entry points {GROUP}: {error}") from error
    for provider in providers.values():
        for table in {table for kind in provider.types.values() for table in kind.tables}:
            if table not in ALL_TABLES:
                raise ProviderInvalid(
                    f"{provider.name}: expected {table.name} among the tables of Headwater and the "
                    f"entry points {TABLES_GROUP}, found it declared by the provider alone"
                )
    return providers


def _load(point: EntryPoint) -> "Provider":
    from headwater.processors.providers.provider import Provider  # noqa: PLC0415 (see above)

    where = f"entry point {point.name} = {point.value} of {GROUP}"
    try:
        provider = point.load()
    except Exception as error:
        raise ProviderInvalid(f"{where}: expected a provider, found {error!r}") from error
    if not isinstance(provider, Provider) or provider.name != point.name:
        raise ProviderInvalid(f"{where}: expected a provider of that name, found {provider!r:.100}")
    return provider
