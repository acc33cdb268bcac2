"""The composition root: config -> classes -> options -> a wired pipeline. It alone knows all parts."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec.structs import asdict

from pipeline.checkpoint.card import ModelCard
from pipeline.config import Config, StageConfig, convert_options
from pipeline.core.gate import Gate
from pipeline.core.import_path import resolve
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.roles import SEPARATIONS, Role
from pipeline.errors import ConfigError
from pipeline.gpu.opening import OPENER, RunnerWords, opener
from pipeline.gpu.options import RunnerOptions, placement_of
from pipeline.graph_rules import step_cycle
from pipeline.messages import DeviceReady, SamplingParams
from pipeline.recordings.places import place_named
from pipeline.recordings.recordings import Recordings
from pipeline.recordings.wanted import Bounds, Rules
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.frames import RunnerSpec
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.shelf import Shelf
from pipeline.runtime.stage import STAGE_API, Stage, StageContext
from pipeline.runtime.supervisor import AnyStage, Supervisor
from pipeline.runtime.trace import Trace
from pipeline.telemetry import Sampler, Settings, Telemetry, TraceSampler
from pipeline.telemetry.slow_log import SlowLog
from pipeline.telemetry.span_export import Sender, SpanExport
from pipeline.telemetry.vitals import num_cpus
from pipeline.topology import CREDITS, Graph, Link
from pipeline.wiring import outlets, senders

StageClass = type[Stage[Any, Any]]


@dataclass(frozen=True)
class Blueprint:
    """A checked configuration: for every stage its class and its options. Nothing is built yet."""

    config: Config
    graph: Graph
    classes: Mapping[str, StageClass]
    options: Mapping[str, msgspec.Struct]


@dataclass
class Running:
    """What the stages that serve now were made of: changed when others take over."""

    blueprint: Blueprint


@dataclass(frozen=True)
class Pipeline:
    """A wired pipeline, ready to run under its supervisor. `stages` holds each stage's instances."""

    running: Running
    supervisor: Supervisor
    contexts: Mapping[str, StageContext]
    """Of each stage, with nothing held back."""
    stages: Mapping[str, list[AnyStage]]
    inboxes: Mapping[str, Inbox[Any]]
    graph: Graph
    trace: Trace
    telemetry: Telemetry
    sampler: Sampler
    recordings: Recordings


def check(config: Config) -> Blueprint:
    """Resolve every import path and convert every options table. Raises ConfigError naming the key."""
    plan = config.graph
    classes = {name: _stage_class(config, plan, name) for name in plan.names}
    options = {name: _options(config, name, stage_class) for name, stage_class in classes.items()}
    device_options(config)
    _check_credits(config, options["schedule"])
    _check_separation(config, options["schedule"])
    _check_sharing(config, options["schedule"])
    _check_tiers(config, options["schedule"])
    _check_policies(config, options["schedule"])
    if config.trace.otlp_endpoint is not None:
        _sender_class(config)
    _check_recorded(config, plan)
    return Blueprint(config, plan, classes, options)


def build(
    blueprint: Blueprint,
    card: ModelCard,
    runner: RunnerFactory | None = None,
    log: structlog.typing.FilteringBoundLogger | None = None,
) -> Pipeline:
    """Wire the graph. `runner` stands in for the one that config describes (tests, benches)."""
    config, plan = blueprint.config, blueprint.graph
    log = log or structlog.get_logger()
    if not config.model.generation_defaults:
        card = msgspec.structs.replace(card, generation=SamplingParams())
    trace = Trace(config.trace.capacity, enabled=config.trace.enabled)
    telemetry = Telemetry(card.name, **asdict(config.metrics))
    inboxes = {node.name: Inbox[Any](config.stages[node.name].inbox) for node in plan.nodes}
    resources: dict[type, object] = {
        ModelCard: card,
        Gate: Gate(),
        Shelf: Shelf(),
        Telemetry: telemetry,
        RunnerFactory: replace(runner or runner_factory(blueprint, card), num_workers=num_workers(blueprint)),
    }
    stages: dict[str, list[AnyStage]] = {}
    contexts: dict[str, StageContext] = {}
    for node in plan.nodes:
        ctx = contexts[node.name] = StageContext(
            node.name,
            inboxes[node.name],
            outlets(plan, node.name, inboxes),
            resources,
            trace,
            log.bind(stage=node.name),
        )
        make, options = blueprint.classes[node.name], blueprint.options[node.name]
        stages[node.name] = [make(ctx, options) for _ in range(config.stages[node.name].workers)]
        telemetry.watch(partial(_gauges, stages[node.name]))
        services = [stage.service for stage in stages[node.name]]
        telemetry.watch_stage(node.name, inboxes[node.name], services, senders(plan, node.name))
    exports = _listeners(config, telemetry, card.name, log)
    running = Running(blueprint)
    sampler = Sampler(telemetry, lambda device: settings(running.blueprint, device))
    recordings = Recordings(stages, plan, card, lambda: telemetry.device, _record_rules(config), log)
    supervisor = Supervisor(
        list(stages.values()), config.server.drain_timeout_s, log, [*exports, sampler, recordings]
    )
    return Pipeline(
        running, supervisor, contexts, stages, inboxes, plan, trace, telemetry, sampler, recordings
    )


def _gauges(instances: list[AnyStage]) -> Mapping[str, float]:
    """Of those that serve now: the list is changed in place when others take over."""
    total: defaultdict[str, float] = defaultdict(float)
    for stage in instances:
        for name, value in stage.gauges().items():
            total[name] += value
    return total


def settings(blueprint: Blueprint, device: DeviceReady) -> Settings:
    """What figures of this pipeline, on this device, have to be seen against."""
    options, stages = blueprint.options, blueprint.config.stages
    return Settings(
        device=device.device,
        num_cpus=num_cpus(),
        num_blocks=device.num_blocks,
        block_size=device.block_size,
        max_num_seqs=device.max_num_seqs,
        max_num_batched_tokens=device.max_num_batched_tokens,
        credits=_option(options["schedule"], "credits", CREDITS),
        tokenize_workers=stages["tokenize"].workers,
        max_waiting=_option(options["schedule"], "max_waiting", 0),
        max_live_requests=_option(options["ingress"], "max_live_requests", 0),
    )


def _check_recorded(config: Config, plan: Graph) -> None:
    for link in config.trace.record:
        try:
            place_named(plan, link)
        except ValueError as error:
            raise ConfigError(f"{config.origin}: trace.record: {error}") from error


def _record_rules(config: Config) -> Rules:
    trace = config.trace
    bounds = Bounds(trace.record_max_bytes, trace.record_max_s)
    return Rules(Path(trace.record_dir), bounds, trace.record_redacted, trace.record)


def _listeners(
    config: Config, telemetry: Telemetry, model: str, log: structlog.typing.FilteringBoundLogger
) -> list[SpanExport]:
    """Who hears of every ended request: the slow log, and the span export (returned) where there is one."""
    slow = SlowLog(config.server.slow_request_ms, config.server.slow_ttft_ms, log)
    telemetry.journal.listen(slow.ended)
    telemetry.watch(slow.counts)
    if config.trace.otlp_endpoint is None:
        return []
    sender = _sender_class(config)(config.trace.otlp_endpoint)
    export = SpanExport(sender, model, log)
    telemetry.trace_sampler = TraceSampler(config.trace.otlp_sample_ratio)
    telemetry.journal.listen(export.ended)
    telemetry.watch(export.counts)
    return [export]


def _sender_class(config: Config) -> Callable[[str], Sender]:
    """What makes a sender of an endpoint. Raises ConfigError if the extra is not installed."""
    try:
        from pipeline.telemetry.otlp import OtlpSender
    except ImportError as error:
        raise ConfigError(
            f"{config.origin}: trace.otlp_endpoint: needs OpenTelemetry ({error}); "
            "install it with: pip install 'stageline[otlp]'"
        ) from error
    return OtlpSender


def _option(options: msgspec.Struct, name: str, default: int) -> int:
    """Of a stage that may have been swapped for one without it."""
    value: int = getattr(options, name, default)
    return value


def device_options(config: Config) -> RunnerOptions:
    """[device] as RunnerOptions. Raises ConfigError."""
    table = dict(config.device)
    if config.model.max_model_len is not None:
        table.setdefault("max_model_len", config.model.max_model_len)
    return convert_options(config.origin, "device", table, RunnerOptions)


def runner_factory(blueprint: Blueprint, card: ModelCard) -> RunnerFactory:
    """The runner of config, with the device half of the sample stage. Opening it imports torch."""
    config, workers = blueprint.config, num_workers(blueprint)
    options = _share_cores(device_options(config), workers)
    sample, sample_options = blueprint.classes["sample"], blueprint.options["sample"]
    spec: RunnerSpec | None = None
    if placement_of(options) == "process":
        card = msgspec.structs.replace(card, chat_template=None)  # grammars go by the tokenizer
        words = RunnerWords(card, options, config.stages["sample"].use, msgspec.to_builtins(sample_options))
        server = config.server
        spec = RunnerSpec(OPENER, words.encoded(), workers, server.log_level, server.log_format)
    open_runner: Callable[[], Any] = opener(card, options, sample, sample_options, workers)
    return RunnerFactory(open_runner, process=spec)


def num_workers(blueprint: Blueprint) -> int:
    """Device workers: one for each role."""
    return len(_roles(blueprint.options["schedule"]))


def _share_cores(options: RunnerOptions, workers: int) -> RunnerOptions:
    """Workers run at the same time, each on its part of the threads."""
    if workers == 1:
        return options
    num_threads = options.num_threads or num_cpus()
    return msgspec.structs.replace(options, num_threads=max(1, num_threads // workers))


def _stage_class(config: Config, plan: Graph, name: str) -> StageClass:
    path = config.stages[name].use
    key = f"{config.origin}: stages.{name}.use"
    stage_class = resolve(key, path)
    if not (isinstance(stage_class, type) and issubclass(stage_class, Stage)):
        raise ConfigError(f"{key} = {path!r}: must be a subclass of pipeline.runtime.stage.Stage")
    if inspect.isabstract(stage_class):
        raise ConfigError(f"{key} = {path!r}: leaves abstract methods: {_abstract(stage_class)}")
    if stage_class.api != STAGE_API:
        raise ConfigError(
            f"{key} = {path!r}: was written for version {stage_class.api!r} of the stage API; this server "
            f"has version {STAGE_API}: docs/stages.md says what has changed"
        )
    sent = _carried(plan, lambda link: link.target == name)
    carried = _carried(config.whole, lambda link: link.source == name)
    _check_links(key, path, name, stage_class, sent, carried)
    return stage_class


def _check_links(
    key: str, path: str, name: str, stage_class: StageClass, sent: set[type], carried: set[type]
) -> None:
    """A stage must take all that is sent to it, and give nothing that no link carries. What only goes to an
    optional stage that is absent may be given.
    """
    if missing := sent - set(getattr(stage_class, "takes", ())):
        raise ConfigError(f"{key} = {path!r}: its `takes` must also have {_names(missing)}")
    if unknown := set(stage_class.gives) - carried:
        raise ConfigError(
            f"{key} = {path!r}: gives {_names(unknown)}, which no link from {name} carries"
            f" (they carry {_names(carried)})"
        )


def _carried(plan: Graph, of: Callable[[Link], bool]) -> set[type]:
    return {link.carries for link in plan.links if of(link)}


def _check_credits(config: Config, schedule: msgspec.Struct) -> None:
    """Every plan that is out must find room on the step cycle, or a step would be lost."""
    credits = _option(schedule, "credits", CREDITS) * len(_roles(schedule))
    for name in step_cycle(config.graph)[1:]:
        if config.stages[name].inbox < credits:
            raise ConfigError(
                f"{config.origin}: stages.{name}.inbox = {config.stages[name].inbox}: must be at least "
                f"stages.schedule.options.credits of all device workers, which is {credits}"
            )


def _check_separation(config: Config, schedule: msgspec.Struct) -> None:
    """What does not go with workers that run at the same time."""
    if len(_roles(schedule)) == 1:
        return
    key = f'{config.origin}: stages.schedule.options.separation = "split"'
    device = device_options(config)
    if device.host_kv_memory:
        raise ConfigError(f"{key}: device.host_kv_memory must be 0, for what is preempted is computed again")
    if device.disk_kv is not None:
        raise ConfigError(f"{key}: device.disk_kv must not be set, for blocks go there through host memory")
    if getattr(schedule, "batching", "") == "static":
        raise ConfigError(f'{key}: stages.schedule.options.batching must not be "static"')


def _check_sharing(config: Config, schedule: msgspec.Struct) -> None:
    """What does not go with prefix_cache, and what not without it."""
    is_shared, key = getattr(schedule, "prefix_cache", False), "stages.schedule.options"
    is_contiguous = getattr(schedule, "allocation", "paged") == "contiguous"
    if is_contiguous and getattr(schedule, "kv_eviction", "none") != "none":
        raise ConfigError(
            f'{config.origin}: {key}.allocation = "contiguous": {key}.kv_eviction must be "none", for ranges '
            "are given back as a whole"
        )
    if is_shared and is_contiguous:
        raise ConfigError(
            f'{config.origin}: {key}.allocation = "contiguous": {key}.prefix_cache must be false, for ranges '
            "are not shared"
        )
    if not is_shared and (count := _option(schedule, "max_pinned_blocks", 0)):
        raise ConfigError(
            f"{config.origin}: {key}.max_pinned_blocks = {count}: {key}.prefix_cache must be true, for what "
            "is not cached cannot stay so"
        )


def _check_tiers(config: Config, schedule: msgspec.Struct) -> None:
    """What the disk needs to be of use."""
    if device_options(config).disk_kv is not None and not getattr(schedule, "prefix_cache", True):
        key = f"{config.origin}: device.disk_kv"
        raise ConfigError(f"{key}: needs stages.schedule.options.prefix_cache, for it keeps its blocks")


def _roles(schedule: msgspec.Struct) -> tuple[Role, ...]:
    return SEPARATIONS[getattr(schedule, "separation", "mixed")]


def _check_policies(config: Config, schedule: msgspec.Struct) -> None:
    """Policies may be import paths: make them once, for any device, so that a fault shows before start."""
    if isinstance(schedule, SchedulingOptions):
        try:
            make_policies(schedule, DeviceReady(1, 1, 1, 1))
        except ConfigError as error:
            raise ConfigError(f"{config.origin}: {error}") from error


def _options(config: Config, name: str, stage_class: StageClass) -> msgspec.Struct:
    table = dict(_with_model_len(config, stage_class, config.stages[name]))
    return convert_options(config.origin, f"stages.{name}.options", table, stage_class.Options)


def _with_model_len(config: Config, stage_class: StageClass, stage: StageConfig) -> Mapping[str, Any]:
    """model.max_model_len is one value for all: stages that have such an option get it from there."""
    fields = stage_class.Options.__struct_fields__
    if config.model.max_model_len is None or "max_model_len" not in fields:
        return stage.options
    return {"max_model_len": config.model.max_model_len, **stage.options}


def _names(types: set[type]) -> str:
    return ", ".join(sorted(each.__name__ for each in types)) or "nothing"


def _abstract(stage_class: StageClass) -> str:
    return ", ".join(sorted(getattr(stage_class, "__abstractmethods__", ())))
