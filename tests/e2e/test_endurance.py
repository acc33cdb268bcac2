"""A quarter of the memory that the load needs: nothing fails, nothing is left, nothing grows."""

import asyncio

import pytest

from tests.e2e.endurance import endure, faults

pytestmark = pytest.mark.model


@pytest.mark.timeout(300)
def test_for_a_moment(model_reference: str) -> None:
    """Too short to judge memory by: the caches of a young server still fill."""
    report = asyncio.run(endure(5, model_reference, num_clients=10))
    assert not faults(report, max_slope_per_min=float("inf")), report


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_for_ten_minutes(model_reference: str) -> None:
    report = asyncio.run(endure(600, model_reference))
    assert not faults(report, max_slope_per_min=1.0), report
