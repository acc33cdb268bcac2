"""What the host sampler costs on this machine, by vocabulary and filter.

    python -m pipeline.gpu.host.measure_sampling [--rows 64] [--runs 7]

CPU milliseconds of one call on one thread, the best of the runs; rows are independent tasks, so N threads
take an Nth. Logits are normal: `steep` with a deviation of 2.5 and a token of 20 in front, as of a model that
is sure; `flat` with 0.7, where 90 % of the mass needs two thirds of the vocabulary.
"""

import argparse
import time
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.library import load_library
from pipeline.gpu.host.sampling import HostSampler
from pipeline.gpu.sampling import SamplingRows

VOCABULARIES = (49_152, 262_144)


class Filter(NamedTuple):
    title: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


FILTERS = (
    Filter("greedy", temperature=0.0),
    Filter("temperature"),
    Filter("top_k 50", top_k=50),
    Filter("top_p 0.9", top_p=0.9),
    Filter("top_k 50, top_p 0.9", top_k=50, top_p=0.9),
)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.gpu.host.measure_sampling", description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    sampler = HostSampler(load_library(Build(find_compiler())), num_threads=1)
    print(f"{'vocabulary':>12} {'filter':<20} {'steep':>9} {'flat':>9}   ms of CPU for {args.rows} rows")
    for vocabulary in VOCABULARIES:
        flat = torch.randn(args.rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 0.7
        steep = flat * (2.5 / 0.7)
        steep[:, 17] = 20.0
        for each in FILTERS:
            times_ms = [_best_ms(sampler, logits, each, args.runs) for logits in (steep, flat)]
            print(f"{vocabulary:>12,} {each.title:<20} {times_ms[0]:>9.2f} {times_ms[1]:>9.2f}", flush=True)


def _best_ms(sampler: HostSampler, logits: Tensor, params: Filter, runs: int) -> float:
    num_rows = logits.shape[0]
    rows = SamplingRows(
        temperature=torch.full((num_rows,), params.temperature),
        top_k=torch.full((num_rows,), params.top_k),
        top_p=torch.full((num_rows,), params.top_p),
        seed=torch.arange(num_rows),
        position=torch.arange(num_rows),
    )
    times_ns = []
    for _ in range(runs):
        begin_ns = time.thread_time_ns()
        sampler(logits, rows)
        times_ns.append(time.thread_time_ns() - begin_ns)
    return min(times_ns) / 1e6


if __name__ == "__main__":
    main()
