"""Who may ask the admin port."""

import pytest

from pipeline.admin.guard import headers, host_of, is_ours


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost:8001", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]:8001", "::1"),
        ("[::1]", "::1"),
        ("LocalHost", "localhost"),
        ("", ""),
        ("a; script-src *", ""),
    ],
)
def test_the_host_of_a_header(header: str, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize(
    "header", ["localhost:8001", "127.0.0.1:8001", "[::1]:8001", "10.1.2.3:8001", "gpu1.lab:8001", "GPU1.lab"]
)
def test_our_names_and_every_address_are_let_in(header: str) -> None:
    assert is_ours(header, "gpu1.lab")


@pytest.mark.parametrize(
    "header",
    ["evil.example:8001", "localhost.evil.example", "127.0.0.1.evil.example:8001", "gpu2.lab", "", ":8001"],
)
def test_other_names_are_not(header: str) -> None:
    """A name that leads here today was chosen by somebody else (DNS rebinding)."""
    assert not is_ours(header, "gpu1.lab")


def test_the_page_may_open_the_door_and_nothing_else() -> None:
    policy = headers("ws://127.0.0.1:8000")["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "connect-src 'self' ws://127.0.0.1:8000;" in policy
