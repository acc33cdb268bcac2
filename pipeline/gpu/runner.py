"""The runner: owns the device, and queues one StepPlan after another on it: forward pass, then sampling.

Called from one thread, its device worker's. It knows no stages and no requests, only slots and blocks.
"""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from msgspec.structs import replace
from torch import Tensor

from pipeline.checkpoint.card import Architecture, ModelCard
from pipeline.checkpoint.weight_files import weights_id
from pipeline.errors import ConfigError
from pipeline.gpu.api import LayerKv, Model, Sees
from pipeline.gpu.backends import Opened, open_model
from pipeline.gpu.device import Clock, Device, open_device
from pipeline.gpu.evaluation.evidence import NO_EVIDENCE, Evidence, find_evidence
from pipeline.gpu.graphs import NO_GRAPHS, Budget, GraphPlan, GraphShape, graph_shapes
from pipeline.gpu.inputs import PreparedStep, SlotTable
from pipeline.gpu.kv.cache import log_size, new_kv_cache
from pipeline.gpu.kv.disk import DiskKv, open_disk_file
from pipeline.gpu.kv.disk_file import DiskFile
from pipeline.gpu.kv.dtype import block_bytes, token_bytes
from pipeline.gpu.kv.host import HostKv
from pipeline.gpu.launched import LaunchedStep
from pipeline.gpu.logprobs import DeviceLogprobs, logprobs_of, scores_of
from pipeline.gpu.memory.free import free_host_bytes
from pipeline.gpu.memory.rehearsal import Rehearsal, Shape, measure_blocks
from pipeline.gpu.memory.sizing import check_kv_memory, count_host_blocks, disk_kv_bytes, graph_budget_bytes
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.sampling import SamplingOp, SamplingRows
from pipeline.gpu.weights.blocks import Weight
from pipeline.grammar import CompiledGrammars, is_installed
from pipeline.grammar.library import TokenizerSpec
from pipeline.messages import DeviceReady, PromptImage, StepHandle, StepPlan

STAGING_BLOCKS = 256
"""In host memory, for blocks on their way to disk and back, where none is given for more."""


class Runner:
    """A model, its KV cache and the state of its slots.

    Args:
        device: the queue that its steps go into.
        new_slots: makes the slots of one runner, and
        new_sampling_op: what samples in them; neither is shared with a fork.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: list[LayerKv],
        host_kv: HostKv,
        device: Device,
        new_slots: Callable[[Device], SlotTable],
        new_sampling_op: Callable[[], SamplingOp],
        capacity: DeviceReady,
        graph_plan: GraphPlan | None = None,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._host_kv = host_kv
        self._device = device
        self._new_slots, self._slots = new_slots, new_slots(device)
        self._new_sampling_op, self._sampling_op = new_sampling_op, new_sampling_op()
        self._num_threads = torch.get_num_threads()
        self._capacity = capacity
        self._graph_plan, self._graphs = graph_plan, NO_GRAPHS
        self._no_tokens = torch.empty(0, dtype=torch.int64, device=device.torch_device)
        self.mover: DiskKv | None = None
        """runtime.bridge.Mover: moves blocks between host memory and disk."""
        device.wait_sync()  # what was made on the way here was queued elsewhere

    @property
    def capacity(self) -> DeviceReady:
        return self._capacity

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepHandle:
        """Queue one step, which on the CPU is done when this returns. Waits for nothing on the device, unless
        the sampling op, the reference's attention, the admission of a sequence with penalties, or a grammar
        does: its row needs the token of the step before.
        """
        with self._device.active():
            step = self._slots.prepare(plan, self._graphs)
            self._device.start()
            self._host_kv.copy(plan)
            self._slots.send(step)
            logits = self._forward(step)
            rows, failed = self._slots.constrain(step)
            num_sampling = step.sample_slots.shape[0]
            token_ids, logprobs = self._sample(logits[:num_sampling], step, rows)
            scores = None if step.scored is None else scores_of(logits[num_sampling:], step.scored)
            others = [each for each in (self._slots.pool(step), self._slots.weigh(step)) if each is not None]
            results = [token_ids, *(logprobs or ()), *(scores or ()), *others]
            completion = self._device.finish(results)
        self._slots.launched(step, completion)
        return LaunchedStep(plan, completion, step.asked, failed, step.scored)

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture decode steps within the plan's budget; seconds. No step may be in flight."""
        capturer = self._device.capturer
        if self._graph_plan is not None and capturer is not None:
            with self._device.active():
                self._graphs = self._graph_plan.capture(capturer, self._decode_work)
                self._slots.wait_sync()

    @torch.inference_mode()
    def rehearse_graphs(self) -> int:
        """Bytes that capture_graphs will take."""
        capturer = self._device.capturer
        if self._graph_plan is None or capturer is None:
            return 0
        with self._device.active():
            return self._graph_plan.rehearse(capturer, self._decode_work)

    def add_disk(self, file: DiskFile, *, keeps: bool) -> None:
        """Blocks may go there from host memory."""
        self.mover = DiskKv(file, self._host_kv.place, keeps=keeps)
        self._capacity = replace(self._capacity, disk=self.mover.ready)

    def fork(self) -> "Runner":
        """Another over the same weights and cache, with slots of its own. Call it on the thread it is for."""
        torch.set_num_threads(self._num_threads)  # OpenMP keeps it by thread
        runner = Runner(
            self._model,
            self._kv_cache,
            self._host_kv,
            self._device.fork(),
            self._new_slots,
            self._new_sampling_op,
            self._capacity,
            self._graph_plan,
        )
        runner.capture_graphs()
        return runner

    def renew(self) -> DeviceReady:
        """Go on after a launch that raised, with what it took given back. All sequences will be admitted
        anew, which replaces what their slots held. What is on disk is told anew. Raises what the device
        raises, if it has not got over it.
        """
        self._slots.forget()
        self._device.wait_sync()
        gc.collect()
        if self._capacity.device == "cuda":
            torch.cuda.empty_cache()
        if self.mover is not None:
            self._capacity = replace(self._capacity, disk=self.mover.renew())
        return self._capacity

    def close(self) -> None:
        """Let the cache go. Idempotent; no launch may follow."""
        if self.mover is not None:
            self.mover.close()
        self._graphs = NO_GRAPHS
        self._kv_cache = []
        self._host_kv.close()

    def _forward(self, step: PreparedStep) -> Tensor:
        """[R + S, V]."""
        if step.shape is None:
            return self._model.forward(self._slots.see(step), self._kv_cache)
        return self._graphs.replay(step.shape)[: step.sample_slots.shape[0]]

    def _sample(
        self, logits: Tensor, step: PreparedStep, rows: SamplingRows
    ) -> tuple[Tensor, DeviceLogprobs | None]:
        """[R], and of those rows that asked."""
        if not logits.shape[0]:
            return self._no_tokens, None
        token_ids = self._sampling_op(logits, rows)
        self._slots.remember(step, token_ids)
        asked = step.asked
        return token_ids, None if asked is None else logprobs_of(logits, token_ids, asked.rows_on_device)

    def _decode_work(self, shape: GraphShape) -> Callable[[], Tensor]:
        inputs, token_slots = self._slots.empty(shape)

        def work() -> Tensor:
            self._slots.fill_in(inputs.token_ids, token_slots)
            return self._model.forward(inputs, self._kv_cache)

        return work


def load_runner(
    card: ModelCard,
    options: RunnerOptions,
    sampling_op: Callable[[], SamplingOp] = SamplingOp,
    clock: Clock = time.perf_counter_ns,
    num_workers: int = 1,
) -> Runner:
    """Read the card's weights onto the device; seconds. Raises ModelError or ConfigError.

    Args:
        num_workers: it and its forks, whose steps run at the same time.
    """
    from pipeline.gpu.weights.load import FileWeights  # a runner over given weights needs no file formats

    weights, evidence = FileWeights(card), find_evidence(card)
    parts = (sampling_op, clock, evidence, num_workers, weights_id(card), _grammars(card))
    return build_runner(card.architecture, weights, options, *parts)


@torch.inference_mode()
def build_runner(
    architecture: Architecture,
    weights: Iterable[tuple[str, Weight]],
    options: RunnerOptions,
    sampling_op: Callable[[], SamplingOp] = SamplingOp,
    clock: Clock = time.perf_counter_ns,
    evidence: Mapping[str, Evidence] = NO_EVIDENCE,
    num_workers: int = 1,
    model_id: str = "",
    grammars: CompiledGrammars | None = None,
) -> Runner:
    """As load_runner, with the weights given, under their Hugging Face names.

    Args:
        model_id: stands for the weights: KV on disk is of use to the same ones only.
        grammars: None: no request may have one.
    """
    max_model_len = _max_model_len(architecture, options)
    device = open_device(options.device, clock)
    check_kv_memory(options.kv_memory)
    graph_budget_bytes(options.cuda_graph_memory)  # refused before weights are read
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
    opened = open_model(architecture, weights, options, dtype, device.torch_device, evidence)
    parts = _Parts(architecture, options, opened, device, max_model_len, sampling_op, clock, grammars)
    num_blocks = measure_blocks(
        options,
        device.torch_device,
        parts.block_bytes,
        options.max_num_seqs * parts.max_blocks,
        lambda most_blocks: num_workers * parts.step_bytes(most_blocks) + parts.graph_bytes(),
    )
    log_size(num_blocks, options.block_size, token_bytes(architecture, opened.kv_dtype), opened.kv_dtype)
    num_host_blocks = count_host_blocks(options.host_kv_memory, parts.block_bytes, free_host_bytes())
    has_disk = options.disk_kv is not None and disk_kv_bytes(options.disk_kv_memory) > 0
    if has_disk:
        num_host_blocks = num_host_blocks or STAGING_BLOCKS
    runner = parts.runner(parts.new_cache(num_blocks), num_blocks, num_host_blocks)
    if has_disk:
        file = open_disk_file(options, parts.kv_id(model_id), parts.block_bytes)
        runner.add_disk(file, keeps=options.disk_kv_keep)
    if num_workers == 1:  # of two, the first does not decode
        runner.capture_graphs()
    return runner


@dataclass(frozen=True)
class _Parts:
    """What runners are made of: one to rehearse, over a few blocks, and the one that serves."""

    architecture: Architecture
    options: RunnerOptions
    opened: Opened
    device: Device
    max_model_len: int
    sampling_op: Callable[[], SamplingOp]
    clock: Clock
    grammars: CompiledGrammars | None

    @property
    def max_blocks(self) -> int:
        """Of a sequence."""
        return -(-self.max_model_len // self.options.block_size)

    @property
    def block_bytes(self) -> int:
        return block_bytes(self.architecture, self.options.block_size, self.opened.kv_dtype)

    def kv_id(self, model_id: str) -> str:
        """Stands for all that the content of a block depends on beside its tokens."""
        opened, options = self.opened, self.options
        layout = type(opened.layout).__name__
        return "\n".join([model_id, opened.arithmetic, opened.kv_dtype, str(options.block_size), layout])

    def new_cache(self, num_blocks: int) -> list[LayerKv]:
        block_size = self.options.block_size
        return new_kv_cache(self.architecture, self.opened.layout, num_blocks, block_size, self._torch_device)

    def runner(self, kv_cache: list[LayerKv], num_blocks: int, num_host_blocks: int = 0) -> Runner:
        options, host_kv = self.options, HostKv(kv_cache, self.opened.layout.kv_block_dim, num_host_blocks)
        ready = DeviceReady(
            num_blocks,
            options.block_size,
            options.max_num_seqs,
            options.max_num_batched_tokens,
            self._torch_device.type,
            num_host_blocks,
            host_kv.measure_sync(self.clock),
            self.block_bytes,
        )
        parts = (self.device, self._new_slots, self._new_op, ready, self._graph_plan)
        return Runner(self.opened.model, kv_cache, host_kv, *parts)

    def step_bytes(self, num_blocks: int) -> int:
        """What the largest step takes beside a cache of so many blocks at most."""
        options = self.options
        sizes = (options.max_num_seqs, options.max_num_batched_tokens, self.max_model_len, options.block_size)
        num_tokens = num_blocks * options.block_size
        shape = Shape(*sizes, image=_any_image(self.architecture))
        rehearsal = Rehearsal(shape, num_tokens, self.opened.grows_by_context)
        kv_cache = self.new_cache(rehearsal.num_blocks)
        for kv in kv_cache:  # memory counts from its first use on, and is not to count as the step's
            kv.k.zero_()
            kv.v.zero_()
        return rehearsal.step_bytes(self.runner(kv_cache, rehearsal.num_blocks).launch, self._torch_device)

    def graph_bytes(self) -> int:
        """What the captured decode steps of one runner take."""
        if self._graph_plan is None:
            return 0
        needed = self.runner(self.new_cache(1), 1).rehearse_graphs()
        return min(needed, self._graph_plan.budget.num_bytes)

    @property
    def _torch_device(self) -> torch.device:
        return self.device.torch_device

    @property
    def _graph_plan(self) -> GraphPlan | None:
        options = self.options
        if not (options.cuda_graphs and self.opened.can_capture):
            return None
        most_rows = min(options.max_num_seqs, options.max_num_batched_tokens)
        budget = Budget(graph_budget_bytes(options.cuda_graph_memory), round(options.cuda_graph_s * 1e9))
        return GraphPlan(graph_shapes(most_rows, self.max_blocks), budget, self.clock)

    def _new_slots(self, device: Device) -> SlotTable:
        options = self.options
        sizes = (options.max_num_seqs, self.max_blocks, options.block_size, self.architecture.vocab_size)
        tokens, model, vision = options.max_num_batched_tokens, self.opened.model, self.architecture.vision
        seeing = (model.see, vision.image_size) if vision and isinstance(model, Sees) else ()
        return SlotTable(*sizes, device, tokens, self.architecture.hidden_size, self.grammars, *seeing)

    def _new_op(self) -> SamplingOp:
        op, faster = self.sampling_op(), self.opened.sampler
        is_built_in = type(op) is SamplingOp  # a subclass filters in its own way
        return faster if faster is not None and is_built_in else op


def _grammars(card: ModelCard) -> CompiledGrammars | None:
    """None: the extra is not installed, or the card has no tokenizer, as in tools that need none."""
    if not (is_installed() and card.tokenizer_json and card.eos_ids):
        return None
    return CompiledGrammars(TokenizerSpec(card.tokenizer_json, card.architecture.vocab_size, card.eos_ids))


def _any_image(architecture: Architecture) -> PromptImage | None:
    vision = architecture.vision
    return None if vision is None else PromptImage(bytes(vision.num_bytes), b"", 0, vision.num_tokens)


def _max_model_len(architecture: Architecture, options: RunnerOptions) -> int:
    limit = architecture.max_position
    wanted = options.max_model_len or limit
    if wanted > limit:
        raise ConfigError(f"max_model_len = {wanted} is over the model's own limit of {limit} positions")
    return wanted
