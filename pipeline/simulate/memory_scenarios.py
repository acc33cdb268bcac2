"""Scenarios of KV memory: what paging, prefix sharing and quantised KV are worth; docs/kv.md shows them."""

from collections.abc import Sequence

from msgspec.structs import replace

from pipeline.errors import ConfigError
from pipeline.gpu.kv.dtype import token_bytes
from pipeline.simulate.case import MAX_TOKENS, PLAIN, Case, Scenario, case_of
from pipeline.simulate.cells import Cell, find_capacity
from pipeline.simulate.figures import Figures
from pipeline.simulate.target import Target
from pipeline.simulate.workload import Workload, asking, at_once, at_rate

SLOTS = 4096
"""So many that memory is what limits how many run."""
SATURATED_REQUESTS = 4000
EQUAL_LOAD = 0.9
"""Of what the baseline can bear."""
CONTIGUOUS: dict[str, object] = {"allocation": "contiguous"}


def _roomy(target: Target) -> Target:
    return replace(target, ready=replace(target.ready, max_num_seqs=SLOTS))


# Paged against contiguous -------------------------------------------------------------------------


def _paging_cases(workload: Workload, target: Target, seed: int) -> list[Case]:
    asked, target = asking(workload, MAX_TOKENS), _roomy(target)
    all_due = at_once(asked[:SATURATED_REQUESTS])
    paced = at_rate(asked, EQUAL_LOAD * find_capacity(asked, target, PLAIN | CONTIGUOUS))
    return [
        case_of("contiguous, all due", CONTIGUOUS, all_due, target),
        case_of("paged, all due", {}, all_due, target),
        case_of("contiguous, 0.9 load", CONTIGUOUS, paced, target),
        case_of("paged, same load", {}, paced, target),
    ]


def _paging_verdict(cases: Sequence[Case], figures: Sequence[Figures]) -> list[str]:
    contiguous, paged, contiguous_paced, paged_paced = figures
    return [
        f"while others wait, {contiguous.running_crowded:,.0f} run at once in ranges, "
        f"{paged.running_crowded:,.0f} paged ({paged.running_crowded / contiguous.running_crowded:.2f} x) in "
        "the same memory; "
        f"{contiguous.requests_per_s:.2f} -> {paged.requests_per_s:.2f} requests/s "
        f"({paged.requests_per_s / contiguous.requests_per_s:.2f} x), {paged.num_preemptions:,} preemptions",
        f"at the same load, 0.9 of what ranges bear: TTFT p99 {_change(contiguous_paced, paged_paced)}",
    ]


# Prefix sharing -----------------------------------------------------------------------------------


def _prefix_cases(workload: Workload, target: Target, seed: int) -> list[Case]:
    if not any(arrival.spans for arrival in workload):
        raise ConfigError("--scenario prefix: this trace does not say what its prompts have in common")
    paced = at_rate(workload, EQUAL_LOAD * find_capacity(workload, target, PLAIN))
    return [
        case_of("alone", {}, paced, target),
        Case(Cell("shared", PLAIN, 1, shares_prefixes=True), paced, target),
    ]


def _prefix_verdict(cases: Sequence[Case], figures: Sequence[Figures]) -> list[str]:
    alone, shared = figures
    workload, block_size = cases[0].workload, cases[0].target.ready.block_size
    possible = _num_possible(workload, block_size) / sum(arrival.num_input for arrival in workload)
    return [
        f"{shared.num_cached_tokens / shared.num_input_tokens:.1%} of the prompt tokens were found in the "
        f"cache; one without end has {possible:.1%}",
        f"at the same load, 0.9 of what is borne without: TTFT p99 {_change(alone, shared)}, p50 "
        f"{alone.ttft_ms.p50 / 1e3:,.2f} -> {shared.ttft_ms.p50 / 1e3:,.2f} s",
    ]


def _num_possible(workload: Workload, block_size: int) -> int:
    """Prompt tokens that a cache which keeps everything finds; each prompt is there once it has come."""
    seen: set[tuple[int, tuple[int, int]]] = set()
    num_tokens = 0
    for arrival in workload:
        chain, found, is_open = 0, 0, True
        for span in arrival.spans:
            is_open = is_open and (chain, span) in seen
            found += span[1] if is_open else 0
            seen.add((chain, span))
            chain = hash((chain, span))
        num_tokens += min(found, arrival.num_input - 1) // block_size * block_size
    return num_tokens


# KV of one byte -----------------------------------------------------------------------------------


def _int8_cases(workload: Workload, target: Target, seed: int) -> list[Case]:
    if target.model is None:
        raise ConfigError("--scenario int8: needs a device of a data sheet, whose model is known")
    ratio = token_bytes(target.model, "bf16") / token_bytes(target.model, "int8")
    target = _roomy(target)
    more = replace(target.ready, num_blocks=int(target.ready.num_blocks * ratio))
    all_due = at_once(asking(workload, MAX_TOKENS)[:SATURATED_REQUESTS])
    return [
        case_of("bf16", {}, all_due, target),
        case_of("int8", {}, all_due, replace(target, ready=more)),
    ]


def _int8_verdict(cases: Sequence[Case], figures: Sequence[Figures]) -> list[str]:
    (bf16, int8), blocks = figures, [case.target.ready.num_blocks for case in cases]
    return [
        f"{blocks[0]:,} blocks as bf16, {blocks[1]:,} as int8 ({blocks[1] / blocks[0]:.2f} x) in the same "
        f"memory; while others wait {bf16.running_crowded:,.0f} and {int8.running_crowded:,.0f} run at once "
        f"({int8.running_crowded / bf16.running_crowded:.2f} x), {bf16.requests_per_s:.2f} and "
        f"{int8.requests_per_s:.2f} requests/s; that int8 is also read faster is not counted"
    ]


def _change(before: Figures, after: Figures) -> str:
    sooner = after.ttft_ms.p99 / before.ttft_ms.p99 - 1
    return f"{before.ttft_ms.p99 / 1e3:,.2f} -> {after.ttft_ms.p99 / 1e3:,.2f} s ({sooner:+.0%})"


MEMORY_SCENARIOS = {
    "paging": Scenario("paged against contiguous KV in the same memory", _paging_cases, _paging_verdict),
    "prefix": Scenario("prefix sharing against none, 0.9 load", _prefix_cases, _prefix_verdict),
    "int8": Scenario("KV as int8 against bf16 in the same memory, saturated", _int8_cases, _int8_verdict),
}
