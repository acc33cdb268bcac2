"""`stageline memory`: what a model's keys and values take, and how many requests fit; no weight is read."""

import argparse
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline import config as configuration
from pipeline.assemble import device_options
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import load_card, num_parameters
from pipeline.checkpoint.weight_files import size_bytes
from pipeline.cli import Commands
from pipeline.cli.numbers import count
from pipeline.gpu.kv.dtype import KvDtype, block_bytes
from pipeline.gpu.memory.free import free_host_bytes
from pipeline.gpu.memory.plan import Load, MemoryPlan, plan_memory
from pipeline.gpu.memory.sizing import Free, count_blocks
from pipeline.gpu.options import RunnerOptions

WEIGHT_BYTES = {"bf16": 2, "fp32": 4}


class Memory(msgspec.Struct, frozen=True):
    """What the command prints, with --json as it is."""

    model: str
    weight_bytes: int
    """In memory at most: as dtype has them. Quantised ones take less."""
    file_bytes: int
    free_bytes: int | None
    """Of this computer, now."""
    kv_memory: str
    plan: MemoryPlan


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "memory",
        help="plan KV memory: what a token takes, how many requests fit",
        description="Without weights or a device. What is not said is as in config.toml.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: ./config.toml if it is there")
    parser.add_argument("--model", metavar="REF", help="model reference")
    parser.add_argument(
        "--context", type=count, required=True, metavar="N", help="tokens of a request, with its answer"
    )
    parser.add_argument("--output", type=int, default=0, metavar="N", help="of these, the answer's")
    parser.add_argument(
        "--concurrency", type=count, default=1, metavar="C", help="requests that are to run at once"
    )
    parser.add_argument("--kv-dtype", choices=get_args(KvDtype), help="what keys and values are stored as")
    parser.add_argument("--block-size", type=count, metavar="N", help="tokens a block")
    parser.add_argument(
        "--kv-memory",
        metavar="SIZE",
        help='bytes, "8GiB", a fraction of what is free beside the weights, or auto, on this computer',
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan. Raises ConfigError or ModelError."""
    config = configuration.override(configuration.load(args.config), model=args.model)
    memory = measure(load_card(config.model.reference), _options(config, args), _load(args))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(memory)).decode())
    else:
        Console(highlight=False).print(_table(memory))
    return 0


def measure(card: ModelCard, options: RunnerOptions, load: Load) -> Memory:
    """As a server with these options would have it, but for what its largest step takes."""
    architecture, is_fp32 = card.architecture, options.dtype == "float32"
    kv_dtype: KvDtype = options.kv_dtype if options.kv_dtype != "auto" else ("fp32" if is_fp32 else "bf16")
    max_model_len = options.max_model_len or architecture.max_position
    weights = num_parameters(card) * WEIGHT_BYTES["fp32" if is_fp32 else "bf16"]
    free = free_host_bytes()
    is_share = options.kv_memory == "auto" or isinstance(options.kv_memory, float)
    left = Free(
        max(0, free - weights) if is_share and free is not None else None
    )  # a size may be elsewhere's
    num_blocks = options.num_blocks or count_blocks(
        options.kv_memory,
        left,
        "cpu",
        block_bytes(architecture, options.block_size, kv_dtype),
        options.max_num_seqs * -(-max_model_len // options.block_size),
    )
    plan = plan_memory(architecture, kv_dtype, options.block_size, num_blocks, max_model_len, load)
    said = f"{options.num_blocks} blocks" if options.num_blocks else str(options.kv_memory)
    return Memory(card.name, weights, size_bytes(card), free, said, plan)


def _options(config: configuration.Config, args: argparse.Namespace) -> RunnerOptions:
    """[device] with what the command line says, checked as if it stood in the file."""
    said = {
        "kv_dtype": args.kv_dtype,
        "block_size": args.block_size,
        "kv_memory": None if args.kv_memory is None else _fraction_or_size(args.kv_memory),
    }
    table = {**config.device, **{key: value for key, value in said.items() if value is not None}}
    if args.kv_memory is not None:
        table.pop("num_blocks", None)
    return device_options(msgspec.structs.replace(config, device=table))


def _fraction_or_size(text: str) -> float | str:
    try:
        fraction = float(text)
    except ValueError:
        return text
    return fraction if 0 < fraction < 1 else text


def _load(args: argparse.Namespace) -> Load:
    return Load(args.context, args.output, args.concurrency)


def _table(memory: Memory) -> Table:
    table = Table(title=memory.model, title_justify="left", show_header=False)
    table.add_column()
    table.add_column()
    for row in _rows(memory):
        table.add_row(*row)
    return table


def _rows(memory: Memory) -> list[tuple[str, str]]:
    plan, fits = memory.plan, memory.plan.fits
    free = "not known" if memory.free_bytes is None else _size(memory.free_bytes)
    return [
        ("weights", f"{_size(memory.weight_bytes)} at most ({_size(memory.file_bytes)} on disk)"),
        ("free on this computer", free),
        ("a token's KV", f"{plan.token_bytes:,} bytes as {plan.kv_dtype}"),
        ("a block's", f"{plan.block_bytes:,} bytes, {plan.block_size} tokens"),
        (
            f"KV memory ({memory.kv_memory})",
            f"{_size(plan.kv_bytes)}: {plan.num_blocks:,} blocks, {plan.num_kv_tokens:,} tokens",
        ),
        ("requests at once, paged, at full length", f"{fits.paged:,}"),
        ("  with half of their answers written", f"{fits.paged_half_way:,}"),
        ("  contiguous, each its prompt and max_tokens", f"{fits.contiguous_request:,}"),
        ("  contiguous, each the model's length", f"{fits.contiguous_model:,}"),
        (
            f"needed for {plan.concurrency:,} at full length",
            f"{_size(plan.needed_bytes)}: {plan.needed_blocks:,} blocks",
        ),
    ]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:,.1f} MiB"
