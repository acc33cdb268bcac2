"""A fit finds the coefficients that the steps were made with, and says how far it is off."""

import random

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.simulate.fitting import Timed, fit_host, fit_steps, non_negative, timed_steps, with_total
from pipeline.simulate.measured import MeasuredCost, StepTerms
from pipeline.simulate.work import StepWork
from tests.unit.doctor.made import evidence, request, requests, shaped, steps

TRUTH = StepTerms(
    ((1, 5e6), (2, 5.5e6), (4, 6e6), (8, 7e6), (16, 11e6), (32, 19e6), (64, 40e6)), 150_000.0, 900.0, 70.0
)


def works(seed: int, count: int) -> list[StepWork]:
    """Decode steps, chunks and both mixed, of 1 to 64 tokens."""
    draw, made = random.Random(seed), []
    for place in range(count):
        num_tokens = draw.choice((1, 2, 3, 4, 6, 8, 16, 31, 32, 64))
        num_rows = num_tokens if place % 2 else draw.randint(1, num_tokens)
        num_kv = num_tokens * draw.randint(1, 300)
        num_attended = num_kv + (num_tokens - num_rows) * draw.randint(0, 500)
        made.append(StepWork(num_tokens, num_rows, num_rows, num_kv, num_attended))
    return made


def timed(terms: StepTerms, seed: int = 0, noise: float = 0.0) -> list[Timed]:
    cost, draw = MeasuredCost(terms), random.Random(seed)
    return [
        Timed(work, int(cost.step_ns(work) * (1 + draw.uniform(-noise, noise)))) for work in works(seed, 300)
    ]


def test_the_truth_is_found() -> None:
    terms, residual = fit_steps(timed(TRUTH))
    found, true = MeasuredCost(terms), MeasuredCost(TRUTH)
    for work in works(1, 200):
        assert found.step_ns(work) == pytest.approx(true.step_ns(work), rel=0.02)
    assert residual.p90 < 0.01 and residual.num_steps == 300
    assert terms.per_kv == pytest.approx(TRUTH.per_kv, rel=0.02)
    assert terms.per_attended == pytest.approx(TRUTH.per_attended, rel=0.02)


def test_noise_is_stated_as_residual() -> None:
    terms, residual = fit_steps(timed(TRUTH, noise=0.2))
    assert 0.05 < residual.median < 0.15
    assert abs(residual.mean) < 0.03
    assert MeasuredCost(terms).step_ns(works(2, 1)[0]) == pytest.approx(
        MeasuredCost(TRUTH).step_ns(works(2, 1)[0]), rel=0.1
    )


def test_scaled_terms_take_as_long_as_the_steps_took() -> None:
    steps = [
        Timed(step.work, step.step_ns * (3 if place % 20 == 0 else 1))
        for place, step in enumerate(timed(TRUTH))
    ]
    terms = with_total(fit_steps(steps)[0], steps)
    cost = MeasuredCost(terms)
    total = sum(cost.step_ns(step.work) for step in steps)
    assert total == pytest.approx(sum(step.step_ns for step in steps), rel=1e-6)


def test_past_the_last_knot_the_base_goes_on_as_before() -> None:
    cost = MeasuredCost(StepTerms(((1, 100.0), (3, 300.0)), 0.0, 0.0, 0.0))
    assert [cost.step_ns(StepWork(tokens, 1, 1, 0, 0)) for tokens in (1, 2, 3, 5)] == [100, 200, 300, 500]
    assert cost.decode_ns(5) == (500.0, 0.0)


def test_non_negative_least_squares_keeps_the_sign_and_is_optimal() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        matrix, target = draw.normal(size=(20, 5)), draw.normal(size=20)
        found = non_negative(matrix, target)
        gradient = matrix.T @ (matrix @ found - target)
        assert (found >= 0).all()
        assert (gradient >= -1e-8).all() and np.allclose(gradient * found, 0, atol=1e-8)  # Karush-Kuhn-Tucker


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="29 steps are too few"):
        fit_steps(timed(TRUTH)[:29])


def test_a_servers_steps_are_fitted() -> None:
    """Steps of 10 ms and 1 ms a row, as the journal has them."""
    recorded = shaped(
        200,
        lambda number: {
            "num_rows": 1 + number % 8,
            "num_decode_tokens": 1 + number % 8,
            "num_kv_tokens": 10 * (1 + number % 8),
            "ms": 10.0 + number % 8,
        },
    )
    terms, residual = fit_steps(timed_steps(evidence(of_steps=recorded)))
    assert MeasuredCost(terms).step_ns(StepWork(4, 4, 4, 40, 40)) == pytest.approx(13e6, rel=0.01)
    assert residual.p90 < 0.01


def test_host_costs_are_the_medians_of_what_was_recorded() -> None:
    segments = {
        "ingress.service": (1, 1),
        "tokenize.service": (3, 3),
        "schedule.wait": (50, 60),
        "detokenize.service": (0.5, 2),
        "stream.service": (0.25, 1),
    }
    host = fit_host(evidence(requests(20, segments), steps(100)))
    assert (host.door_ns, host.text_ns, host.result_ns) == (4_000_000, 750_000, 0)


def test_evidence_without_an_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no finished request"):
        fit_host(evidence([request(1, ttft_segments_ns=())], steps(100)))
