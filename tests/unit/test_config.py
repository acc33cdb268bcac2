from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from pipeline.checkpoint.reference import DEFAULT_REFERENCE
from pipeline.config import AdminConfig, convert_options, load, loads, override
from pipeline.errors import ConfigError
from pipeline.topology import NODES, WHOLE


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    flush_ms: int = 20
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    mode: Literal["on", "off"] = "on"
    size: Literal["auto"] | Annotated[int, msgspec.Meta(ge=1)] = "auto"
    names: list[Annotated[str, msgspec.Meta(min_length=1)]] = []

    def __post_init__(self) -> None:
        if self.mode == "off" and self.flush_ms > 100:
            raise ValueError("flush_ms must be at most 100 when mode is off")


def fault(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        loads(text, "config.toml")
    return str(raised.value)


def option_fault(**table: object) -> str:
    with pytest.raises(ConfigError) as raised:
        convert_options("config.toml", "stages.stream.options", table, Options)
    return str(raised.value).removeprefix("config.toml: stages.stream.options")


def test_empty_is_complete() -> None:
    config = loads("", "config.toml")
    assert list(config.stages) == [node.name for node in NODES]
    assert [stage.use for stage in config.stages.values()] == [node.use for node in NODES]
    assert config.stages["tokenize"].workers == 2
    assert config.model.reference == DEFAULT_REFERENCE


def test_values_are_read() -> None:
    config = loads(
        """
        [server]
        drain_timeout_s = 5
        log_format = "json"
        [model]
        reference = "hf:org/name@main"
        name = "mine"
        [device]
        dtype = "bf16"
        [trace]
        enabled = false
        [stages.sample]
        use = "my_lab.min_p:MinPSample"
        inbox = 3
        options = { p = 0.1 }
        """,
        "config.toml",
    )
    assert config.server.drain_timeout_s == 5.0
    assert (config.server.log_format, config.server.log_level) == ("json", "info")
    assert (config.model.name, config.device, config.trace.enabled) == ("mine", {"dtype": "bf16"}, False)
    sample = config.stages["sample"]
    assert (sample.use, sample.inbox, sample.options) == ("my_lab.min_p:MinPSample", 3, {"p": 0.1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stages.tokenize]\nworkers = 0", "stages.tokenize.workers = 0: must be at least 1"),
        ("[stages.tokenize]\nworkers = true", "stages.tokenize.workers = true: must be int, not bool"),
        ("[stages.tokenize]\ninbox = -1", "stages.tokenize.inbox = -1: must be at least 1"),
        (
            "[stages.sample]\nworkers = 2",
            "stages.sample.workers = 2: only tokenize may have more than one worker",
        ),
        (
            '[stages.sample]\nuse = "my_lab.MinP"',
            'stages.sample.use = "my_lab.MinP": must be an import path like "package.module:Class"',
        ),
        ("[stages]\nsample = 1", "stages.sample = 1: must be a table, written as [stages.sample]"),
        (
            '[server]\nlog_level = "loud"',
            'server.log_level = "loud": must be one of debug, info, warning, error',
        ),
        ("[server]\ndrain_timeout_s = -1", "server.drain_timeout_s = -1: must be at least 0.0"),
        ("[server]\ndrain_timeout_s = inf", "server.drain_timeout_s = inf: must be a finite number"),
        ("[server]\ndrain_timeout_s = nan", "server.drain_timeout_s = nan: must be a finite number"),
        ('[model]\nname = ""', 'model.name = "": must have length at least 1'),
        ('[model]\nmax_model_len = "1k"', 'model.max_model_len = "1k": must be int, not str'),
        ("server = 3", "server = 3: must be a table, written as [server]"),
        ("[trace]\ncapacity = 0", "trace.capacity = 0: must be at least 1"),
    ],
)
def test_a_fault_names_file_key_value_and_what_is_allowed(text: str, message: str) -> None:
    assert fault(text) == f"config.toml: {message}"


def test_unknown_names_are_refused_with_the_near_one_and_the_list() -> None:
    names = ", ".join(WHOLE.names)
    assert (
        fault("[stages.tokenise]")
        == f"config.toml: stages.tokenise: no such stage. Did you mean tokenize? Allowed: {names}"
    )
    assert fault("[sever]\n").startswith("config.toml: sever: no such key. Did you mean server?")
    assert "server.drain: no such key. Allowed: drain_timeout_s, " in fault("[server]\ndrain = 1")
    assert "stages.stream.flush_ms: no such key." in fault("[stages.stream]\nflush_ms = 1")


def test_a_bad_model_reference_is_the_fault_of_its_key() -> None:
    message = fault('[model]\nreference = "s3://bucket/model"')
    assert message.startswith('config.toml: model.reference = "s3://bucket/model": ')
    assert "hf:" in message


def test_a_long_value_is_cut() -> None:
    assert len(fault(f'[server]\nlog_level = "{"x" * 5000}"')) < 200


def test_faults_of_the_file(tmp_path: Path) -> None:
    assert "not valid TOML" in fault("[server") and "at" in fault("[server")
    with pytest.raises(ConfigError, match=r"none.toml: cannot be read: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match=r"latin.toml: must be UTF-8"):
        load(tmp_path / "latin.toml")


def test_load_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().stages == loads("", "x").stages
    (tmp_path / "config.toml").write_text("[trace]\ncapacity = 7")
    assert load().trace.capacity == 7


def test_options_are_reported_like_the_rest() -> None:
    assert option_fault(flush_ms="x") == '.flush_ms = "x": must be int, not str'
    assert option_fault(share=0) == ".share = 0: must be more than 0.0"
    assert option_fault(share=float("nan")) == ".share = nan: must be a finite number"
    assert option_fault(mode=1) == ".mode = 1: must be one of on, off"
    assert option_fault(size="big") == '.size = "big": must be one of auto, int'
    assert option_fault(size=0) == ".size = 0: must be at least 1"
    assert option_fault(names=["a", ""]) == ".names = ['a', '']: must have length at least 1 (at [1])"
    assert option_fault(names="a") == '.names = "a": must be a list, not str'
    assert option_fault(flush=1).startswith(".flush: no such key. Did you mean flush_ms? Allowed: flush_ms, ")
    assert option_fault(mode="off", flush_ms=200) == ": flush_ms must be at most 100 when mode is off"


def test_options_that_must_be_set() -> None:
    class Needy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        path: str

    with pytest.raises(ConfigError, match=r"c: stages.x.options.path: must be set"):
        convert_options("c", "stages.x.options", {}, Needy)


def test_options_are_converted() -> None:
    options = convert_options("c", "k", {"share": 1, "size": 4, "names": ["a"]}, Options)
    assert options == Options(share=1.0, size=4, names=["a"])


def test_override_of_the_admin_port() -> None:
    config = loads("[admin]\nenabled = false\nport = 7", "config.toml")
    assert override(config).admin == config.admin
    assert override(config, admin_port=0).admin == AdminConfig(enabled=True, port=0)
    assert override(loads("", "config.toml"), admin_port="off").admin == AdminConfig(enabled=False)


def test_override() -> None:
    config = loads('[model]\nname = "mine"\n[stages.ingress.options]\nport = 1\nhost = "::"', "config.toml")
    assert override(config) == config
    other = override(config, model="hf:a/b", port=0)
    assert (other.model.reference, other.model.name) == ("hf:a/b", None)
    assert other.stages["ingress"].options == {"port": 0, "host": "::"}
    assert config.stages["ingress"].options == {"port": 1, "host": "::"}
