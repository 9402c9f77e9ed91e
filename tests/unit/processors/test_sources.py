"""The file of sources: what it may say, and that each mistake in it is named with its place."""

import pytest

from headwater.processors.providers.headwater import HEADWATER
from headwater.processors.providers.terra.provider import TERRA
from headwater.processors.signature_schemes import SCHEMES, HeaderForm
from headwater.processors.sources import Source, SourcesInvalid, providers_of, read_sources
from tests.fakes.walks import WALKS

PROVIDERS = {"terra": TERRA, "walks": WALKS}
SHOP = """
[[source]]
name = "shop"
scheme = "shopify"
secret_env = ["SHOP_NEW", "SHOP_OLD"]
paths = ["/hooks/shop"]
subject = "/customer/id"
"""


def one(text: str) -> Source:
    (source,) = read_sources(text, PROVIDERS)
    return source


def problems(text: str) -> list[str]:
    with pytest.raises(SourcesInvalid) as caught:
        read_sources(text, PROVIDERS)
    return caught.value.message.split("\n")


def test_a_source_has_a_path_of_its_name_and_those_that_are_written():
    source = one(SHOP)
    assert source.paths == ("/webhooks/shop", "/hooks/shop")
    assert source.scheme is SCHEMES["shopify"]
    assert source.secret_locations.variables == ("SHOP_NEW", "SHOP_OLD")


def test_every_scheme_can_be_named():
    for name in SCHEMES:
        text = f'[[source]]\nname = "x"\nscheme = "{name}"\nsecrets = ["s"]'
        assert one(text).scheme is SCHEMES[name]


def test_a_source_of_a_provider_is_signed_and_read_as_the_provider_says():
    source = one('[[source]]\nname = "terra"\nprovider = "terra"')
    assert (source.provider, source.scheme, source.paths) == (TERRA, TERRA.scheme, TERRA.paths)
    other = one('[[source]]\nname = "terra-eu"\nprovider = "terra"\nscheme = "svix"')
    assert (other.provider, other.scheme) == (TERRA, SCHEMES["svix"])
    assert other.paths == ("/webhooks/terra-eu",)
    assert providers_of([other]) == {"headwater": HEADWATER, "terra-eu": TERRA}


def test_providers_that_no_source_names_are_sources_if_the_file_says_so():
    text = 'every_provider = true\n[[source]]\nname = "terra-eu"\nprovider = "terra"'
    assert [source.name for source in read_sources(text, PROVIDERS)] == ["terra-eu", "walks"]
    assert read_sources("", PROVIDERS) == ()


def test_a_scheme_can_be_written_in_full():
    source = one(
        """
        [[source]]
        name = "acme"
        secrets = ["s"]
        [source.scheme]
        signature_header = "X-Acme-Signature"
        form = "prefix"
        label = "sha512="
        template = "{t}:{raw}"
        time_header = "X-Acme-Time"
        algorithm = "sha512"
        encoding = "base64"
        tolerance_s = 60
        """
    )
    scheme = source.scheme
    assert (scheme.signature_header, scheme.time_header) == ("x-acme-signature", "x-acme-time")
    assert (scheme.form, scheme.signature_chars, scheme.tolerance_s) == (HeaderForm.PREFIX, 88, 60)


@pytest.mark.parametrize(
    ("places", "body", "headers", "type_", "subject"),
    [
        ('type = "/kind"\nsubject = "/of/0/id"', b'{"kind":"a","of":[{"id":7}]}', {}, "a", "7"),
        ('type = "/a~1b/m~0n"', b'{"a/b":{"m~n":"x"}}', {}, "x", ""),
        ('type = "X-Kind"', b"no JSON", {"x-kind": "push"}, "push", ""),
        ('type = "x-kind"', b"{}", {}, "unknown", ""),
        ('type = "/kind"\nsubject = "/s"', b"no JSON", {}, "unknown", ""),
        ('type = "/kind"\nsubject = "/s"', b'{"kind":null,"s":{}}', {}, "unknown", ""),
        ('type = "/kind"', b'{"kind":true}', {}, "unknown", ""),
        ('type = "/kind"', b'{"kind":"a\\u0000"}', {}, "unknown", ""),
        ('type = "/kind/0"', b'{"kind":["a"]}', {}, "a", ""),
        ('type = "/kind/9"', b'{"kind":["a"]}', {}, "unknown", ""),
        ('type = "/kind"', b"[" * 10_000, {}, "unknown", ""),
        ('type = "/kind"', b'{"kind":"a","x":"\xff"}', {}, "a", ""),
        ('type = "/kind"', b'{"kind":"\xff"}', {}, "unknown", ""),
        ('type = "/kind"\nsubject = "/s"', b'{"kind":"a","s":[1e308]}', {}, "a", ""),
        ('type = "/kind"\nsubject = "/s"', b'{"kind":"a","s":-7}', {}, "a", "-7"),
        ('type = "/kind"\nsubject = "/s"', b'{"kind":"a","s":1.5}', {}, "a", ""),
        ('type = "/kind"', b'{"kind":' + b"9" * 5_000 + b"}", {}, "unknown", ""),
        ('type = "/kind"', b'{"kind":"' + b"a" * 257 + b'"}', {}, "unknown", ""),
        ('type = "/kind"', b'{"kind":"' + b"\\u0061" * 256 + b'"}', {}, "a" * 256, ""),
        ('type = "/kind"', b'{"kind":"a"', {}, "unknown", ""),
        ('type = "/0/kind"', b'[{"kind":"a"},{"kind":"b"}]', {}, "a", ""),
        ('type = "/1"', b'{"1":"a"}', {}, "a", ""),
        ('type = "/999"', b"[" + b"0," * 999 + b'"last"]', {}, "last", ""),
        ("", b"{}", {}, "unknown", ""),
    ],
)
def test_type_and_subject_are_found_where_the_file_says(
    places: str, body: bytes, headers: dict[str, str], type_: str, subject: str
):
    source = one(f'[[source]]\nname = "x"\nscheme = "plain"\nsecrets = ["s"]\n{places}')
    assert set(headers) <= set(source.provider.headers)
    routing = source.provider.read(body, headers)
    assert (routing.type, routing.subject) == (type_, subject)


@pytest.mark.parametrize(
    ("scheme", "body", "headers", "type_"),
    [
        ("github", b"{}", {"x-github-event": "push"}, "push"),
        ("shopify", b"{}", {"x-shopify-topic": "orders/paid"}, "orders/paid"),
        ("stripe", b'{"type":"charge.failed"}', {}, "charge.failed"),
        ("standard-webhooks", b'{"type":"a.b"}', {}, "a.b"),
        ("svix", b'{"type":"a.b"}', {}, "a.b"),
        ("slack", b'{"type":"event_callback","event":{"type":"message"}}', {}, "message"),
    ],
)
def test_a_type_is_found_where_producers_of_a_scheme_put_it(
    scheme: str, body: bytes, headers: dict[str, str], type_: str
):
    source = one(f'[[source]]\nname = "x"\nscheme = "{scheme}"\nsecrets = ["whsec_MTIz"]')
    assert source.provider.read(body, headers).type == type_


SCHEME_NAMES = ", ".join(sorted(SCHEMES))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[[source", "expected TOML, found: "),
        ("[[sauce]]", "expected [[source]] tables, found: Object contains unknown field `sauce`"),
        ("source = 1", "expected [[source]] tables, found: Expected `array`, got `int`"),
        ("[[source]]", "source 1: expected the field `name`, found none"),
        (
            f'{SHOP}\nsekret = "x"',
            "source shop: unknown field `sekret`: expected one of name, scheme,",
        ),
        (f"{SHOP}\nsecrets = 1", "source shop: Expected `array`, got `int` - at `secrets`"),
        (
            SHOP.replace("shopify", "magento"),
            f"source shop: scheme: expected one of {SCHEME_NAMES}, found 'magento'",
        ),
        (
            '[[source]]\nname = "x"\nsecrets = ["s"]',
            f"source x: scheme: expected one of {SCHEME_NAMES}, or a table; found none",
        ),
        (SHOP.replace('"shop"', '"My Shop"'), "source My Shop: name: expected a name such as"),
        (SHOP.replace("/hooks/shop", "hooks"), "source shop: paths: expected paths that begin"),
        (SHOP.replace("/hooks/shop", "/v1/sync"), "source shop: paths: expected a path that"),
        (
            SHOP.replace('["SHOP_NEW", "SHOP_OLD"]', '"HEADWATER_SHOP"'),
            "source shop: secret_env: expected a name that does not begin with HEADWATER_",
        ),
        (
            '[[source]]\nname = "x"\nscheme = "plain"',
            "source x: expected secret_env, secret_file or secrets, found none",
        ),
        (
            SHOP.replace("/customer/id", "a b"),
            "source shop: subject: expected a header or a JSON pointer such as /type, found 'a b'",
        ),
        (
            f'{SHOP}\nprovider = "fitbit"',
            "source shop: provider: expected one of terra, walks, found 'fitbit'",
        ),
        (
            '[[source]]\nname = "terra"\nprovider = "terra"\ntype = "/type"',
            "source terra: expected type and subject without a provider only",
        ),
        (
            '[[source]]\nname = "x"\nsecrets = ["s"]\n'
            '[source.scheme]\nsignature_header = "x-s"\nform = "plane"',
            "source x: Invalid enum value 'plane' - at `scheme.form`",
        ),
        (
            '[[source]]\nname = "x"\nsecrets = ["s"]\n'
            '[source.scheme]\nsignature_header = "x s"\nform = "plain"',
            "source x: scheme.signature_header: expected the name of a header, found 'x s'",
        ),
        (
            '[[source]]\nname = "x"\nsecrets = ["s"]\n'
            '[source.scheme]\nsignature_header = "x-s"\nform = "plain"\ntemplate = "{t}.{raw}"',
            "source x: x's own: a time needs a source, {t} in the template, a limit",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, line: str):
    (result,) = problems(text)
    assert result.startswith(line)


def test_every_mistake_is_named_and_nothing_is_there_twice():
    twice = problems(SHOP + SHOP)
    assert twice == [
        "expected each name once, found shop twice",
        "expected each path once, found /hooks/shop twice",
        "expected each path once, found /webhooks/shop twice",
    ]
    both = SHOP.replace("shopify", "x") + SHOP.replace("/hooks/shop", "hooks")
    assert len(problems(both)) == 2


def test_secrets_are_not_shown():
    assert "hidden" not in repr(one(SHOP.replace("paths", 'secrets = ["hidden"]\npaths')))
