"""Which weights the host kernels run: what the configuration says, or the fastest that evidence allows."""

from collections.abc import Mapping

import structlog

from pipeline.gpu.evaluation.evidence import SCHEMES, Evidence
from pipeline.gpu.host.layout import Choice


def choose_weights(wanted: str, evidence: Mapping[str, Evidence]) -> Choice:
    """`wanted` as in [device], evidence by weights. Logs what `auto` goes by."""
    match wanted:
        case "bf16" | "int8" | "int4":
            return wanted
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    if not evidence:
        log.info("bf16 weights: nothing is known of others for this model (stageline eval finds out)")
    for weights in _CHOICES:
        found = evidence.get(weights)
        if found is None:
            continue
        log.info(
            f"{weights} weights are {'' if found.is_good else 'not '}good enough",
            scheme=found.scheme,
            perplexity=f"{found.increase:+.2%} against {found.against}",
            predictions=found.num_tokens,
        )
        if found.is_good:
            return weights
    return "bf16"


_CHOICES: tuple[Choice, ...] = ("int4", "int8")
assert tuple(SCHEMES) == _CHOICES, "the fastest first"
