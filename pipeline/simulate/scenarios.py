"""Scenarios: what a policy is claimed to do, on a trace, with the figures that say whether it does.

Each makes its cases of one workload and one target, and reads their figures; docs/scheduling.md shows them.
"""

import random
from collections.abc import Sequence as Seq

import msgspec

from pipeline.core.policies.options import SJF_PROMPT_WEIGHT
from pipeline.messages import DeviceReady, Terms
from pipeline.simulate.case import MAX_TOKENS, PLAIN, Case, Scenario, case_of
from pipeline.simulate.cells import Cell, find_capacity
from pipeline.simulate.figures import Figures
from pipeline.simulate.memory_scenarios import MEMORY_SCENARIOS
from pipeline.simulate.target import Target
from pipeline.simulate.workload import Arrival, Workload, asking, at_once, at_rate, with_terms

# sjf against fcfs ---------------------------------------------------------------------------------

SJF_TOKENS_PER_S = 5.0
SJF_LOAD = 0.9


def _sjf_cases(workload: Workload, target: Target, seed: int) -> list[Case]:
    asked = asking(workload, MAX_TOKENS)
    paced = at_rate(asked, SJF_LOAD * find_capacity(asked, target, PLAIN))
    sjf = {"policy": "sjf", "sjf_tokens_per_s": SJF_TOKENS_PER_S}
    return [
        case_of("fcfs", {"policy": "fcfs"}, paced, target),
        case_of("sjf", sjf, paced, target),
        case_of("answers only", sjf | {"sjf_prompt_weight": 0.0}, paced, target),
    ]


def _sjf_verdict(cases: Seq[Case], figures: Seq[Figures]) -> list[str]:
    fcfs, *others = figures
    longest = max(arrival.num_input for arrival in cases[0].workload)
    most = {"sjf": MAX_TOKENS + SJF_PROMPT_WEIGHT * longest, "answers only": MAX_TOKENS}
    lines = []
    for sjf in others:
        window_s = most[sjf.policy] / SJF_TOKENS_PER_S
        lines += [
            f"{sjf.policy}: mean E2E {_change(fcfs.e2e_ms.mean, sjf.e2e_ms.mean)}, mean TTFT "
            f"{_change(fcfs.ttft_ms.mean, sjf.ttft_ms.mean)} against fcfs",
            f"{sjf.policy}: p99.9 wait {sjf.wait_ms.p999 / 1e3:,.1f} s; bound "
            f"{fcfs.wait_ms.max / 1e3 + window_s:,.1f} s (fcfs's longest, and the {window_s:,.0f} s within "
            "which later ones may pass)",
        ]
    return lines


# continuous against static ------------------------------------------------------------------------

STATIC_REQUESTS = 4000


def _static_cases(workload: Workload, target: Target, seed: int) -> list[Case]:
    all_due = at_once(workload[:STATIC_REQUESTS])
    static = PLAIN | {"batching": "static"}
    return [
        Case(Cell("padded", static, 1, is_padded=True), all_due, target),
        Case(Cell("static", static, 1), all_due, target),
        case_of("continuous", {"batching": "continuous"}, all_due, target),
    ]


def _static_verdict(cases: Seq[Case], figures: Seq[Figures]) -> list[str]:
    padded, static, continuous = (each.output_tokens_per_s for each in figures)
    wasted = figures[0].num_padding_tokens / (figures[0].num_input_tokens + figures[0].num_output_tokens)
    return [
        f"continuous has {continuous / padded:.2f} times the throughput of static batches padded to the "
        f"longest ({wasted:.2f} tokens in vain for each real one),",
        f"and {continuous / static:.2f} times that of batches spared their padding, as this server's are",
    ]


# A target for ITL against a fixed prefill budget --------------------------------------------------

ITL_TARGET_MS = 30.0
ITL_LOAD = 0.6
LONG_PROMPT = 16_384
LONG_EVERY = 25
FIXED_BUDGET = 8192


def _itl_cases(workload: Workload, target: Target, seed: int) -> list[Case]:
    longest = min(LONG_PROMPT, target.max_model_len - max(arrival.num_output for arrival in workload))
    mixed = [
        arrival._replace(num_input=longest) if index % LONG_EVERY == 0 else arrival
        for index, arrival in enumerate(workload)
    ]
    ready = _with_budget(target.ready, FIXED_BUDGET)
    host = msgspec.structs.replace(target.host, flush_tokens=1, flush_ns=0)  # every token is seen by itself
    plain = msgspec.structs.replace(target, ready=ready, host=host)
    paced = at_rate(mixed, ITL_LOAD * find_capacity(mixed, plain, PLAIN))
    return [
        case_of("fixed", {}, paced, plain),
        case_of("itl_target", {"itl_target_ms": ITL_TARGET_MS}, paced, plain),
    ]


def _itl_verdict(cases: Seq[Case], figures: Seq[Figures]) -> list[str]:
    fixed, targeted = figures
    return [
        f"ITL p99 {fixed.itl_ms.p99:,.0f} -> {targeted.itl_ms.p99:,.0f} ms with a target of "
        f"{ITL_TARGET_MS:g} ms; mean TTFT {_change(fixed.ttft_ms.mean, targeted.ttft_ms.mean)}, "
        f"mean E2E {_change(fixed.e2e_ms.mean, targeted.e2e_ms.mean)}"
    ]


# A light tenant beside one that floods ------------------------------------------------------------

HEAVY, LIGHT = "heavy", "light"
LIGHT_SHARE = 0.05
FLOOD_LOAD = 1.5
FAIR_BUDGET = 256
"""Tokens a step: whoever arrives waits for the steps under way, so these must be short."""
LIGHT_WEIGHT = 20.0
"""Of the light tenant in the case `weighted`: its bursts are served before the other's queue."""


def _fair_cases(workload: Workload, target: Target, seed: int) -> list[Case]:
    num_light = max(2, round(LIGHT_SHARE * len(workload)))
    light = set(random.Random(seed).sample(range(len(workload)), min(num_light, len(workload))))

    def terms_of(index: int, arrival: Arrival) -> Terms:
        return Terms(tenant=LIGHT if index in light else HEAVY)

    asked = with_terms(asking(workload, MAX_TOKENS), terms_of)
    target = msgspec.structs.replace(target, ready=_with_budget(target.ready, FAIR_BUDGET))
    paced = at_rate(asked, FLOOD_LOAD * find_capacity(asked, target, PLAIN))
    alone = [arrival for arrival in paced if arrival.terms.tenant == LIGHT]
    return [
        case_of("solo", {"policy": "fair"}, alone, target),
        case_of("fcfs", {"policy": "fcfs"}, paced, target),
        case_of("fair", {"policy": "fair"}, paced, target),
        case_of("weighted", {"policy": "fair", "fair_weights": {LIGHT: LIGHT_WEIGHT}}, paced, target),
    ]


def _fair_verdict(cases: Seq[Case], figures: Seq[Figures]) -> list[str]:
    solo, *others = figures
    alone = solo.ttft_ms.p99
    lines = [f"TTFT p99 of the light tenant, alone: {alone:,.0f} ms; beside one that floods:"]
    for each in others:
        beside = each.by_tenant[LIGHT].ttft_ms.p99
        lines.append(f"{each.policy}: {beside:,.0f} ms ({beside / alone:.2f} x)")
    return lines


SCENARIOS: dict[str, Scenario] = {
    "sjf": Scenario("shortest first against first come, at 0.9 load", _sjf_cases, _sjf_verdict),
    "static": Scenario("continuous against static batches, saturated", _static_cases, _static_verdict),
    "itl": Scenario("an ITL target against a fixed prefill budget, long prompts", _itl_cases, _itl_verdict),
    "fair": Scenario("a light tenant beside one that floods", _fair_cases, _fair_verdict),
    **MEMORY_SCENARIOS,
}


def _with_budget(ready: DeviceReady, max_num_batched_tokens: int) -> DeviceReady:
    return msgspec.structs.replace(ready, max_num_batched_tokens=max_num_batched_tokens)


def _change(before: float, after: float) -> str:
    return f"{before / 1e3:,.2f} -> {after / 1e3:,.2f} s ({after / before - 1:+.0%})"
