"""Everything that only a GPU can tell, in one run of under eight minutes.

    python bench/gpu_check.py                      all parts; prints a table last, and writes gpu_check.json
    python bench/gpu_check.py --parts kernels      some of them
    python bench/gpu_check.py --tiny               on the CPU, in Triton's interpreter: does the script run?

Needs torch >= 2.11, triton >= 3.6, numpy, msgspec and structlog; with --wheels FOLDER wheels of the last two
are taken from there. Each part runs in a process of its own, for a kernel's fault leaves its process without
CUDA; a part that fails, or is not done in its time, is said to have failed, and the next begins.
Exit status: 0 all is right and no target is missed, 1 something is not, 2 there is no GPU.
"""

import argparse
import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"machine": 40, "correctness": 150, "kernels": 110, "serving-1B": 60, "serving-8B": 100}
"""Seconds that each may take: 7.7 minutes in all."""


def main() -> int:
    args = _arguments()
    sys.path[:0] = [str(ROOT), *(str(wheel) for wheel in _wheels(args.wheels))]
    return _run_part(args) if args.part else _run_all(args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), metavar="FILE")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="with msgspec and structlog")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, in Triton's interpreter")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--rates", default="[1e12, 1e15]", help=argparse.SUPPRESS)
    return parser.parse_args()


def _wheels(folder: Path | None) -> list[Path]:
    """What is to be imported from: a folder of unpacked packages, and wheels unpacked beside themselves."""
    if folder is None:
        return []
    found = [folder]
    for wheel in sorted(folder.glob("*.whl")):
        unpacked = wheel.with_suffix(".unpacked")
        if not unpacked.is_dir():
            zipfile.ZipFile(wheel).extractall(unpacked)
        found.append(unpacked)
    return [path.resolve() for path in found]


def _run_part(args: argparse.Namespace) -> int:
    """In a process of its own: a line of JSON for each row, on the first of the pipes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if args.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    import msgspec
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for row in _rows(args):
        print(msgspec.json.encode(row).decode(), file=answers, flush=True)
    return 0


def _rows(args: argparse.Namespace) -> Iterator[Any]:
    import torch

    from bench.checks import correctness, machine, serving, speed
    from bench.checks.bench import Bench
    from bench.checks.rows import Rates
    from bench.checks.timers import new_timer
    from pipeline.gpu.kernels.interpreter import prepare

    device = torch.device("cpu" if args.tiny else "cuda")
    prepare(device)
    torch.manual_seed(0)
    bench = Bench(device, new_timer(device), args.tiny, Rates(*json.loads(args.rates)))
    with torch.inference_mode():
        match args.part.partition("-"):
            case "machine", _, _:
                yield from machine.run(bench)
            case "correctness", _, _:
                yield from correctness.run(bench)
            case "kernels", _, _:
                yield from speed.run(bench)
            case _, _, model:
                yield from serving.run(bench, model)


def _run_all(args: argparse.Namespace) -> int:
    from bench.checks.parts import Check

    began = time.perf_counter()
    same = [*(["--tiny"] if args.tiny else []), *(["--wheels", str(args.wheels)] if args.wheels else [])]
    check = Check([sys.executable, __file__, *same], sys.executable, PARTS)
    check.describe()
    if check.machine["gpu"] == "none" and not args.tiny:
        print("torch sees no GPU here: nothing to check (--tiny checks the script)", file=sys.stderr)
        return 2
    for part in args.parts:
        check.run(part)
        check.write(args.out)
    print(f"\n{check.table()}\n{time.perf_counter() - began:.0f} s; written to {args.out}")
    return 0 if all(row.ok for row in check.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
