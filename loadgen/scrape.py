"""The server's own figures: Prometheus text, scraped before, while and after a run."""

import re

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import ServerError

_TIMEOUT_S = 5.0


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        """Raises ServerError if `text` is not in the Prometheus text format."""
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError as error:
            raise ServerError(f"/metrics is not in the Prometheus text format: {error}") from error

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of the samples that have these labels, whatever others; None if there are none."""
        found = [value for own, value in self._samples.get(name, ()) if labels.items() <= own.items()]
        return sum(found) if found else None

    def labels(self, name: str, label: str) -> list[str]:
        """The values of one label, in the order of the text."""
        return list(dict.fromkeys(own[label] for own, _ in self._samples.get(name, ()) if label in own))


def gauge(text: str, name: str) -> float | None:
    """One sample without labels, found without reading the rest: cheap enough while a run goes on."""
    found = re.search(rf"^{re.escape(name)} (\S+)", text, re.MULTILINE)
    return float(found[1]) if found else None


async def fetch(session: aiohttp.ClientSession, url: str) -> str | None:
    """The text of `url`/metrics; None if the server has no such page.

    Raises:
        ServerError: it does not answer, or with an error.
    """
    try:
        async with session.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as response:
            if response.status == 404:
                return None
            if response.status != 200:
                raise ServerError(f"{url}/metrics answered {response.status}")
            return await response.text()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ServerError(f"{url}/metrics: {error or type(error).__name__}") from error
