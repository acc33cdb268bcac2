"""Configuration: frozen structs, and the only reader of config.toml.

Every fault is a ConfigError that names file, key, value and what is allowed. The options of a stage and
of the device stay raw tables here, since their structs belong to those who use them; the composition root
converts them with `convert_options`, which reports faults in the same words.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import replace

from pipeline import graph_rules
from pipeline.checkpoint.reference import DEFAULT_REFERENCE, parse
from pipeline.core.import_path import resolve
from pipeline.errors import ConfigError, ModelError
from pipeline.topology import WHOLE, Graph, Node

DEFAULT_PATH = Path("config.toml")

_TABLES = ("server", "model", "device", "trace", "metrics", "admin", "topology")
"""Those of the file's top level, but for `stages`."""

S = TypeVar("S", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
ImportPath = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the tables that config.toml may hold."""


class ServerConfig(Section, frozen=True):
    drain_timeout_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """How long live requests may go on after the first SIGTERM or Ctrl-C."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    slow_request_ms: Annotated[float, msgspec.Meta(ge=0)] = 10_000.0
    """A request that took so long is logged with all its segments,"""
    slow_ttft_ms: Annotated[float, msgspec.Meta(ge=0)] = 2000.0
    """and one that waited so long for its first token. 0: every request."""


class ModelConfig(Section, frozen=True):
    reference: Text = DEFAULT_REFERENCE
    name: Text | None = None
    """What clients call the model; None: its own name."""
    max_model_len: Count | None = None
    """Prompt and answer together, in tokens; None: what the model was trained for."""
    generation_defaults: bool = True
    """What requests do not say of their sampling is as the model's generation_config has it; false: at
    temperature 1, unfiltered, as in OpenAI's API."""


class TraceConfig(Section, frozen=True):
    enabled: bool = True
    capacity: Count = 65_536
    """In points; the oldest are dropped."""
    otlp_endpoint: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/]")] | None = None
    """An OpenTelemetry collector (OTLP over HTTP) that gets the spans; None: there is none."""
    otlp_sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Of the requests without a traceparent; for the others their caller decides."""
    record: tuple[Text, ...] = ()
    """Links whose messages are recorded from the start, such as "schedule->detokenize"."""
    record_dir: Text = "recordings"
    """Where recordings are written, those that the admin port is asked for included."""
    record_max_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 64 << 20
    """Of one recording, and"""
    record_max_s: Annotated[float, msgspec.Meta(ge=0.1)] = 60.0
    """for how long it goes on; the admin port cannot be asked for more."""
    record_redacted: bool = True
    """What clients say and are told is replaced by other text; false: whoever can reach the admin port can
    record it too."""


class MetricsConfig(Section, frozen=True):
    """/metrics: under which names of others the figures stand there too."""

    vllm_names: bool = True
    """Those of vLLM that public dashboards use."""
    gen_ai_names: bool = True
    """OpenTelemetry's gen_ai server metrics."""


class AdminConfig(Section, frozen=True):
    """The admin port: the live page, evidence, metrics."""

    enabled: bool = True
    host: Text = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    """0: any free one; None: the one after the door's, any free one where the door's is 0."""
    allow_swap: bool = False
    """Whether the user who runs the server may put other code in a stage's place while it runs."""


class TopologyConfig(Section, frozen=True):
    """Which graph of stages runs."""

    use: ImportPath | None = None
    """A pipeline.topology.Graph; None: the default, pipeline.topology.WHOLE."""


class StageConfig(Section, frozen=True):
    """One stage, with topology's defaults filled in. `options` is not checked yet."""

    use: ImportPath
    inbox: Count
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)]
    options: dict[str, Any] = {}


class Config(msgspec.Struct, frozen=True):
    """The whole configuration. `stages` has every stage of the graph; `device` is not checked yet."""

    origin: str
    """The file, for messages about tables that are checked later."""
    server: ServerConfig
    model: ModelConfig
    device: dict[str, Any]
    trace: TraceConfig
    metrics: MetricsConfig
    admin: AdminConfig
    topology: TopologyConfig
    whole: Graph
    """The one that topology names, and"""
    graph: Graph
    """without the optional stages that the file has no table for: what runs."""
    stages: dict[str, StageConfig]


def load(path: Path | None = None) -> Config:
    """Read a file; None: ./config.toml where there is one, else the defaults. Raises ConfigError."""
    if path is None:
        if not DEFAULT_PATH.exists():
            return loads("", "the defaults")
        path = DEFAULT_PATH
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: must be UTF-8: {error}") from error
    return loads(text, str(path))


def loads(text: str, origin: str) -> Config:
    """Read TOML text; `origin` names it in messages. Raises ConfigError."""
    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    _refuse_unknown(origin, "", root, (*_TABLES, "stages"))
    tables = {key: _table(origin, key, root.get(key, {})) for key in _TABLES}
    topology = convert_options(origin, "topology", tables["topology"], TopologyConfig)
    stages = _table(origin, "stages", root.get("stages", {}))
    whole, graph = _graphs(origin, topology, stages)
    return Config(
        origin,
        convert_options(origin, "server", tables["server"], ServerConfig),
        _model(origin, tables["model"]),
        tables["device"],
        convert_options(origin, "trace", tables["trace"], TraceConfig),
        convert_options(origin, "metrics", tables["metrics"], MetricsConfig),
        convert_options(origin, "admin", tables["admin"], AdminConfig),
        topology,
        whole,
        graph,
        {node.name: _stage(origin, graph, node, stages.get(node.name, {})) for node in graph.nodes},
    )


def override(
    config: Config,
    *,
    model: str | None = None,
    host: str | None = None,
    port: int | None = None,
    admin_port: int | Literal["off"] | None = None,
) -> Config:
    """The configuration with what the command line said; None leaves a value as it is.

    Another model goes by its own name: `model.name` of the file belongs to the file's model.
    """
    if admin_port == "off":
        config = replace(config, admin=replace(config.admin, enabled=False))
    elif admin_port is not None:
        config = replace(config, admin=replace(config.admin, enabled=True, port=admin_port))
    if model is not None:
        config = replace(config, model=replace(config.model, reference=model, name=None))
    said = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    if not said:
        return config
    ingress = config.stages["ingress"]
    ingress = replace(ingress, options=ingress.options | said)
    return replace(config, stages=config.stages | {"ingress": ingress})


def convert_options(origin: str, key: str, table: Mapping[str, Any], struct_type: type[S]) -> S:
    """A table as its struct. `key` is the table's place in the file, such as "stages.stream.options".

    Raises ConfigError: for unknown keys, and for values that the struct's types, ranges or __post_init__
    refuse.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct_type)}
    _refuse_unknown(origin, key, table, fields)
    for name, value in table.items():
        _check(origin, f"{key}.{name}", value, fields[name].type)
    for field in fields.values():
        if field.required and field.encode_name not in table:
            raise ConfigError(f"{origin}: {key}.{field.encode_name}: must be set")
    try:
        return msgspec.convert(dict(table), struct_type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {key}: {error}") from error


def _model(origin: str, table: Mapping[str, Any]) -> ModelConfig:
    model = convert_options(origin, "model", table, ModelConfig)
    try:
        parse(model.reference)
    except ModelError as error:
        raise _fault(origin, "model.reference", model.reference, str(error)) from error
    return model


def _graphs(origin: str, topology: TopologyConfig, stages: Mapping[str, Any]) -> tuple[Graph, Graph]:
    """The one that is named, and what runs of it."""
    whole, key = WHOLE, f"{origin}: topology.use"
    if topology.use is not None:
        whole = graph_rules.check(f"{key} = {topology.use!r}", resolve(key, topology.use))
    _refuse_unknown(origin, "stages", stages, whole.names, what="stage")
    graph = whole.chosen(stages)
    return whole, graph_rules.check(f"{key}, without its optional stages", graph)


def _stage(origin: str, graph: Graph, node: Node, value: object) -> StageConfig:
    key = f"stages.{node.name}"
    table = _table(origin, key, value)
    if "workers" in table and node.workers is None:
        pools = ", ".join(other.name for other in graph.nodes if other.workers is not None)
        raise _fault(
            origin, f"{key}.workers", table["workers"], f"only {pools} may have more than one worker"
        )
    defaults = {"use": node.use, "inbox": node.inbox_bound, "workers": node.workers or 1}
    return convert_options(origin, key, defaults | table, StageConfig)


def _table(origin: str, key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _fault(origin, key, value, f"must be a table, written as [{key}]")
    return value


def _refuse_unknown(
    origin: str, key: str, table: Iterable[str], known: Iterable[str], what: str = "key"
) -> None:
    known = list(known)
    for name in table:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        place = f"{key}.{name}" if key else name
        allowed = ", ".join(known) if known else "none"
        raise ConfigError(f"{origin}: {place}: no such {what}.{hint} Allowed: {allowed}")


def _check(origin: str, key: str, value: object, kind: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _fault(origin, key, value, "must be a finite number")
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _fault(origin, key, value, _allowed(str(error), kind)) from error


def _allowed(message: str, kind: Any) -> str:
    """What a msgspec message says is expected, in the words of someone who edits a TOML file."""
    message, _, path = message.partition(" - at `$")
    where = f" (at {path.rstrip('`')})" if path else ""
    choices = _choices(kind)
    if message.startswith("Invalid enum value") or (choices and get_origin(kind) is Literal):
        return f"must be one of {', '.join(choices)}"
    if "regex" in message and "https?" in message:
        return "must be a URL that begins with http:// or https://"
    if kind is ImportPath and "regex" in message:
        return 'must be an import path like "package.module:Class"'
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message + where


_WORDS = (
    (r" \| null`", "`"),
    (r"^Expected `\w+` of length (>=|<=|==)", r"Expected length \1"),
    (r"^Expected `(int|float)` (?=[<>=])", "Expected "),
    (r"^Expected `([^`]*)`, got `(\w+)`", r"must be \1, not \2"),
    (r"^Expected `([^`]*)`", r"must be \1"),
    (r"^Expected", "must be"),
    (r">= ", "at least "),
    (r"<= ", "at most "),
    (r"> ", "more than "),
    (r"< ", "less than "),
    (r"be length", "have length"),
    (r"\barray\b", "a list"),
    (r"\bobject\b", "a table"),
)


def _choices(kind: Any) -> list[str]:
    """What a Literal, or a union with one, allows; empty for any other type."""
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return [choice for member in members for choice in _choices(member) or [_name(member)]]
    return []


def _name(kind: Any) -> str:
    return getattr(getattr(kind, "__origin__", kind), "__name__", str(kind))


def _fault(origin: str, key: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{origin}: {key} = {_shown(value)}: {allowed}")


def _shown(value: object) -> str:
    """A value as TOML writes it, cut to fit one line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = msgspec.json.encode(value).decode()
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
