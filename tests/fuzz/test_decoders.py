"""Bytes from outside end as a value or as a declared error, whatever they are.

In the suite: the corpus, and what hypothesis makes of it. Nightly: a minute of atheris for each target.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, chat, completion, frame

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
FUZZ_S = 60
JSON_TARGETS = {"completion": completion, "chat": chat, "frame": frame}
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def corpus(name: str) -> list[bytes]:
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """One of the seeds with some bytes put in, taken out or changed."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([0, 1, 2, 8, 40]))
        data[start : start + length] = draw(st.binary(max_size=9) | st.sampled_from(TROUBLE))
    return bytes(data)


TROUBLE = [
    b"NaN",
    b"-1",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b'"\\ud800"',
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x00" * 8,
    b"9" * 30,
    b'{"a":' * 50,
]

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from([-1, 0, 1, 2, "auto", "none", "text", "user", "json_object", [], {}]),
)
KEYS = st.sampled_from(
    ["type", "role", "content", "text", "function", "name", "schema", "json_schema", "regex", "choice", "1"]
)
VALUES = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)


def fields_of(name: str) -> list[str]:
    """All that the corpus asks for."""
    found: set[str] = {"tools", "tool_choice", "response_format", "structured_outputs", "functions"}
    for data in corpus(name):
        try:
            found |= json.loads(data).keys()
        except ValueError:
            continue
    return sorted(found)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    assert corpus(name)
    for data in corpus(name):
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_like_the_corpus(name: str) -> None:
    @QUICK
    @given(mutated(corpus(name)))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("name", JSON_TARGETS)
def test_fields_of_any_value(name: str) -> None:
    """Valid JSON, right field names, any values: what byte mutations seldom reach."""
    begin: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "a"}]} if name == "chat" else {"prompt": "a"}
    )
    begin |= {"type": "generate", "id": "a"} if name == "frame" else {}

    @QUICK
    @given(st.dictionaries(st.sampled_from(fields_of(name)), VALUES, max_size=3))
    def run(fields: dict[str, Any]) -> None:
        JSON_TARGETS[name](json.dumps(begin | fields).encode())

    run()


@pytest.mark.nightly
@pytest.mark.timeout(FUZZ_S * 3)
@pytest.mark.parametrize("name", TARGETS)
def test_a_minute_of_atheris(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: it has wheels for Linux alone")
    command = [sys.executable, "-m", "tests.fuzz.run", name, str(FUZZ_S)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    got = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=FUZZ_S * 2,
        check=False,
    )
    assert got.returncode == 0, got.stderr[-4000:]
    executed = re.search(r"number_of_executed_units: (\d+)", got.stderr)
    assert executed and int(executed[1]) > 10_000, got.stderr[-1000:]
