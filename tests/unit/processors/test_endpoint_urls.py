"""Which URLs and addresses notifications may be sent to."""

from ipaddress import ip_address, ip_network

import pytest

from headwater.processors.endpoint_urls import address_problem, target_of, url_problem

ALLOWED = (ip_network("10.20.0.0/16"), ip_network("fd00:1::/64"))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:8443/hooks?team=1",
        "https://93.184.216.34/",
        "https://example.com./",
        f"https://{'x' * 63}.example.com/",
        "https://[2606:4700::1111]/x",
        "http://10.20.3.4:9000/hooks",
        "https://10.20.3.4",
        "http://[fd00:1::7]/",
    ],
)
def test_public_and_allowed_urls(url: str):
    assert url_problem(url, ALLOWED, loopback=False) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "ftp://example.com",
        "example.com/hooks",
        "https://",
        "https://user:secret@example.com",
        "https://user@example.com",
        "https://example.com/#part",
        "https://a..example.com/",
        "https://.example.com/",
        "https://example.com../",
        "https://./",
        f"https://{'x' * 64}.example.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com/ x",
        "https://example.com/\n",
        "https://exämple.com/",
        "https://10.0.0.1/",
        "https://10.21.0.1/",
        "https://192.168.1.1",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:169.254.169.254]/",
        "https://[fe80::1]/",
        "https://[64:ff9b::a00:1]/",
        "https://[2002:a00:1::]/",
        "https://[fec0::2]/",
        "https://[::10.0.0.1]/",
        "https://[::ffff:0:10.0.0.1]/",
        "https://[5f00::1]/",
        "https://0.0.0.0/",
        "https://224.0.0.1/",
        "https://100.64.0.1/",
        "http://127.0.0.1:8000/",
        "https://localhost/",
        "https://[::1]/",
        "https://" + "x" * 3_000,
    ],
)
def test_urls_that_are_refused(url: str):
    assert url_problem(url, ALLOWED, loopback=False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/", "http://localhost:1/x", "http://[::1]/"])
def test_loopback_is_allowed_in_development(url: str):
    assert url_problem(url, (), loopback=True) is None


def test_a_public_host_needs_tls_also_in_development():
    assert url_problem("http://example.com", (), loopback=True)


def test_addresses_that_a_name_resolves_to():
    assert address_problem(ip_address("93.184.216.34"), (), loopback=False) is None
    assert address_problem(ip_address("::ffff:10.20.0.1"), ALLOWED, loopback=False) is None
    assert address_problem(ip_address("127.0.0.1"), (), loopback=False)
    assert address_problem(ip_address("::ffff:127.0.0.1"), (), loopback=False)


def test_a_target_has_the_parts_of_a_request():
    target = target_of("https://Example.com/a?b=c")
    assert not isinstance(target, str)
    assert (target.host, target.port, target.path) == ("example.com", 443, "/a?b=c")
    assert target.authority == "Example.com"
