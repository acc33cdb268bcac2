"""config.toml and docs/config.md are true to the structs that they describe."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pipeline.assemble import check, device_options
from pipeline.config import (
    AdminConfig,
    Config,
    MetricsConfig,
    ModelConfig,
    ServerConfig,
    TopologyConfig,
    TraceConfig,
    load,
    loads,
)

ROOT = Path(__file__).parents[2]
FILE = ROOT / "config.toml"
NOT_SET = "not set"

Settings = dict[str, dict[str, str]]
"""Table -> key -> default as TOML writes it."""


def tables() -> dict[str, type[msgspec.Struct]]:
    """Every table with a struct of its own."""
    config = loads("", "the defaults")
    options = check(config).options
    return {
        "server": ServerConfig,
        "model": ModelConfig,
        "device": type(device_options(config)),
        "trace": TraceConfig,
        "metrics": MetricsConfig,
        "admin": AdminConfig,
        "topology": TopologyConfig,
        **{f"stages.{name}.options": type(struct) for name, struct in options.items()},
    }


def fields() -> Settings:
    """What the code says. max_model_len is one setting, under [model], whoever has a field for it."""
    found: Settings = {}
    for table, struct in tables().items():
        for field in msgspec.structs.fields(struct):
            if field.name != "max_model_len" or table == "model":
                default = (
                    field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
                )
                found.setdefault(table, {})[field.name] = toml(default)
    return found


def toml(value: Any) -> str:
    return NOT_SET if value is None else msgspec.json.encode(value).decode()


def documented() -> Settings:
    """What docs/config.md says, but for [stages.NAME], which has no one default."""
    found: Settings = {}
    table = ""
    for line in (ROOT / "docs" / "config.md").read_text("utf-8").splitlines():
        if heading := re.fullmatch(r"## \[(.+)\]", line):
            table = heading[1]
        elif (row := re.match(r"\| `(\w+)` \| (.+?) \|", line)) and table != "stages.NAME":
            found.setdefault(table, {})[row[1]] = row[2].strip("`")
    return found


def leaves(table: dict[str, Any], path: str = "") -> Settings:
    """Table by table; one inside a table of settings is the value of a setting."""
    found: Settings = {}
    for key, value in table.items():
        if isinstance(value, dict) and path not in tables():
            found |= leaves(value, f"{path}.{key}".lstrip("."))
        else:
            found.setdefault(path, {})[key] = toml(value)
    return found


def absent() -> str:
    """config.toml with the settings that are absent by default put in."""
    return re.sub(r"(?m)^# (?=[a-z_]+ = )", "", FILE.read_text("utf-8"))


def test_the_documentation_has_every_setting_with_its_default() -> None:
    assert documented() == fields()


def test_config_toml_has_every_setting_with_its_default() -> None:
    shown = leaves(tomllib.loads(absent()))
    given = leaves(tomllib.loads(FILE.read_text("utf-8")))
    for table, keys in fields().items():
        assert {key: given.get(table, {}).get(key, NOT_SET) for key in shown[table]} == keys


def converted(config: Config) -> tuple[Config, Any, Any]:
    """A configuration with its raw tables as structs."""
    stages = {name: replace(stage, options={}) for name, stage in config.stages.items()}
    return (
        replace(config, origin="", device={}, stages=stages),
        check(config).options,
        device_options(config),
    )


def test_config_toml_changes_nothing() -> None:
    assert converted(load(FILE)) == converted(loads("", ""))


def test_the_settings_that_are_absent_by_default_are_valid() -> None:
    config = loads(absent(), "config.toml")
    check(config)
    device_options(config)
    assert config.model.name is not None and config.model.max_model_len is not None
