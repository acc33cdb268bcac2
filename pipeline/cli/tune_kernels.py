"""`stageline tune-kernels`: how the Triton kernels are best launched on the GPU of this machine."""

import argparse
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.progress import track

from pipeline.cli import Commands
from pipeline.gpu.kernels.catalogue import KERNELS
from pipeline.gpu.kernels.config import GpuConfigs, Setting, read, save, saved_path
from pipeline.gpu.kernels.shapes import MODELS, find_shapes
from pipeline.gpu.kernels.timing import Gpu, find_gpu
from pipeline.gpu.kernels.tuning import Task, Tuned, tune_task
from pipeline.gpu.kernels.workloads.suite import TUNED, Sizes
from pipeline.gpu.kv.dtype import KvDtype


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "tune-kernels",
        help="measure how the GPU kernels are best launched here",
        description=f"Minutes for a model; saved for the next start. Models: {', '.join(MODELS)}.",
    )
    parser.add_argument(
        "--model", nargs="+", default=["Llama-3.1-8B"], metavar="SHAPE", help="shapes to tune for"
    )
    parser.add_argument("--kernel", nargs="+", default=list(KERNELS), choices=KERNELS, help="default: all")
    parser.add_argument("--kv-dtype", nargs="+", default=["bf16"], choices=get_args(KvDtype))
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: what this GPU is run by")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, say what is faster, save it. Raises ConfigError without a GPU."""
    gpu = find_gpu()
    shapes = find_shapes(args.model, tuple(args.kv_dtype))
    work = [Task(kernel, shape) for kernel in args.kernel for shape in shapes]
    tune_all(work, args.out or saved_path(gpu.name), gpu, TUNED)
    return 0


def tune_all(work: list[Task], path: Path, gpu: Gpu, sizes: Sizes) -> GpuConfigs:
    """Save after each task, beside what the file has of others; an interruption loses one task."""
    configs = read(path) if path.is_file() else GpuConfigs(gpu.name, "", [gpu.name], {})
    configs.source = f"stageline tune-kernels, {datetime.now(UTC):%Y-%m-%d}, triton {version('triton')}"
    console = Console(stderr=True)
    for task in track(work, f"Tuning for {gpu.name}", console=console):
        for tuned, setting in tune_task(task, sizes, gpu):
            if tuned.is_better:
                configs.put(task.kernel, setting)
                save(path, configs)
            console.print(_line(task, tuned, setting), highlight=False, soft_wrap=True)
    return configs


def _line(task: Task, tuned: Tuned, setting: Setting) -> str:
    config = tuned.config
    sizes = " ".join(f"{name}={size}" for name, size in config.constants.items())
    what = f"warps={config.num_warps} stages={config.num_stages} {sizes}".rstrip()
    verdict = f"{tuned.gain:.0%} faster, saved" if tuned.is_better else "as it was"
    launches = " ".join(f"{name}={value}" for name, value in setting.when.items())
    return f"{task.kernel} {task.shape.name} {launches}: {what}: {tuned.cost:.4f} ms, {verdict}"
