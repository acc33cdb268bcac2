"""One scrape of a running server, as a test asks it."""

from collections.abc import Iterable

import aiohttp
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.world import Server


class Page:
    """The metrics of one moment."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]
        self.kinds = {
            line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")
        }
        """Of each metric, by its name as it is written."""

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels, whatever others. KeyError if no metric is so named."""
        found = [
            each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()
        ]
        if not {name, name.rpartition("_")[0]} & set(self.kinds):
            raise KeyError(name)
        return sum(found)

    def labels(self, name: str) -> Iterable[dict[str, str]]:
        """Those of each series of a metric, without a histogram's own."""
        for sample in self.samples:
            if sample.name in (name, f"{name}_sum"):
                yield sample.labels


async def scrape(session: aiohttp.ClientSession, server: Server) -> Page:
    async with session.get(f"{server.url}/metrics") as response:
        assert response.status == 200
        return Page(await response.text())
