"""The command line of `stageline swap`; the rest is in tests/e2e/test_swap_command.py."""

import argparse
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.cli.swap import _option, _port_of
from pipeline.errors import StagelineError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=8", 8),
        ("a=true", True),
        ('a=["x", "y"]', ["x", "y"]),
        ('a=[{ terms = ["x"] }]', [{"terms": ["x"]}]),
        ("a=plain words", "plain words"),
        ("a=", ""),
        ("a=b=c", "b=c"),
    ],
)
def test_options_are_toml_or_text(text: str, value: Any) -> None:
    assert _option(text) == ("a", value)


@pytest.mark.parametrize("text", ["a", "=1", "a b=1", "a.b=1"])
def test_options_have_a_key(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be KEY=VALUE"):
        _option(text)


@pytest.mark.parametrize(("url", "port"), [("http://h:8001", 8001), ("http://h", 80), ("https://h/x", 443)])
def test_the_port_of_a_url(url: str, port: int) -> None:
    assert _port_of(url) == port


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "http://h:port"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(StagelineError, match="--url"):
        _port_of(url)


def test_no_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["swap", "sample", "a:B", "--url", "http://127.0.0.1:9"]) == 1
    assert "allow_swap = true" in capsys.readouterr().err
