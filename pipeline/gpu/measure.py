"""How fast the runner is on this machine, without the server around it.

    python -m pipeline.gpu.measure --model REF --backend host --weights int8
    python -m pipeline.gpu.measure --model REF --backend torch

Greedy steps as a scheduler would plan them: one stream, 32 tokens of prompt and 128 of answer; 16 rows at
context 256; a prompt of 1,024 in chunks of 512. Medians, and the best of all: beside other work only the best
says something of the code.
"""

import argparse
import statistics
from collections.abc import Iterator

from pipeline.checkpoint.model import load_card
from pipeline.checkpoint.reference import DEFAULT_REFERENCE
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, load_runner
from pipeline.messages import NO_TOKEN, Admitted, SamplingParams, StepPlan

GREEDY = SamplingParams(temperature=0.0)
BLOCK_SIZE = 16
MAX_LEN = 1024


def main() -> None:
    """Load, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.gpu.measure", description=__doc__)
    parser.add_argument("--model", default=DEFAULT_REFERENCE)
    parser.add_argument("--backend", choices=("auto", "host", "torch"), default="auto")
    parser.add_argument("--weights", choices=("auto", "bf16", "int8", "int4"), default="auto")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    options = RunnerOptions(
        device="cpu",
        backend=args.backend,
        weights=args.weights,
        num_blocks=16 * MAX_LEN // BLOCK_SIZE,
        max_num_seqs=16,
        max_model_len=MAX_LEN,
    )
    runner = load_runner(load_card(args.model), options)
    decode = [ms for _ in range(args.runs) for ms in one_stream(runner)]
    print(f"decode, one stream:   {_rate(decode, 1)}")
    rows = [ms for _ in range(args.runs) for ms in steps(runner, num_rows=16, context=256, num_tokens=1)]
    print(f"decode, 16 rows:      {_rate(rows, 16)}")
    prefill = [sum(prompt(runner)) for _ in range(args.runs)]
    print(f"prefill of {MAX_LEN:,}:     {_rate(prefill, MAX_LEN)}")


def one_stream(runner: Runner) -> Iterator[float]:
    """ms of each of 128 steps after a prompt of 32."""
    run(runner, num_rows=1, num_computed=0, num_tokens=32)
    for position in range(32, 160):
        yield run(runner, num_rows=1, num_computed=position, num_tokens=1)


def steps(runner: Runner, num_rows: int, context: int, num_tokens: int) -> Iterator[float]:
    """ms of ten steps of num_rows rows that see `context` tokens."""
    for _ in range(10):
        yield run(runner, num_rows, context - num_tokens, num_tokens)


def prompt(runner: Runner) -> Iterator[float]:
    """ms of the chunks of one prompt."""
    chunk = 512
    for start in range(0, MAX_LEN, chunk):
        yield run(runner, num_rows=1, num_computed=start, num_tokens=chunk)


def run(runner: Runner, num_rows: int, num_computed: int, num_tokens: int) -> float:
    """ms of one step; row i is in slot i, over blocks of its own."""
    slots, columns = list(range(num_rows)), MAX_LEN // BLOCK_SIZE
    token_ids = [NO_TOKEN] if num_tokens == 1 else [1 + i % 100 for i in range(num_tokens)]
    plan = StepPlan(
        step_id=0,
        planned_ns=0,
        request_ids=slots,
        epochs=[0] * num_rows,
        slots=slots,
        num_tokens=[num_tokens] * num_rows,
        num_computed=[num_computed] * num_rows,
        samples=[True] * num_rows,
        token_ids=token_ids * num_rows,
        admitted=[Admitted(slot=slot, sampling=GREEDY, request_id=slot) for slot in slots],
        block_slots=[slot for slot in slots for _ in range(columns)],
        block_cols=list(range(columns)) * num_rows,
        block_ids=list(range(columns * num_rows)),
    )
    handle = runner.launch(plan)
    handle.token_ids_sync()
    return (handle.end_ns - handle.begin_ns) / 1e6


def _rate(times_ms: list[float], num_tokens: int) -> str:
    median, best = statistics.median(times_ms), min(times_ms)
    return (
        f"median {median:8.2f} ms = {num_tokens / median * 1e3:7.1f} tok/s,"
        f"  best {best:8.2f} ms = {num_tokens / best * 1e3:7.1f} tok/s"
    )


if __name__ == "__main__":
    main()
