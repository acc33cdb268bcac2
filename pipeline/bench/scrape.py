"""Scrape: the counters of /metrics, and what they moved by between two scrapes."""

import asyncio
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from pipeline.bench.wire import take_head
from pipeline.errors import StagelineError

Key = tuple[str, str]
"""A sample's name, and its `stage` label or ""."""


async def scrape(host: str, port: int) -> dict[Key, float]:
    """GET /metrics: every sample without labels or with the label `stage` alone."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer, body = take_head(await reader.read())
    finally:
        writer.close()
    if answer is None or answer.status != 200:
        raise StagelineError("the server did not answer GET /metrics")
    return read(body.decode())


def read(text: str) -> dict[Key, float]:
    return {
        (sample.name, sample.labels.get("stage", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if set(sample.labels) <= {"stage"}
    }


def moved(before: Mapping[Key, float], after: Mapping[Key, float]) -> dict[Key, float]:
    """By how much each sample rose."""
    return {key: value - before.get(key, 0.0) for key, value in after.items()}
