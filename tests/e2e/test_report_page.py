"""report.html in a real browser: do the charts draw, on a wide screen and on a phone?"""

import json
import re
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from loadgen.html import render
from tests.e2e.browser import find_browser
from tests.unit.loadgen.test_html import empty_result
from tests.unit.loadgen.test_result import made_result

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
MEASURE = """
<script>
function box(element) {
  const rect = element.getBoundingClientRect();
  return [rect.left, rect.top, rect.width, rect.height];
}
function overlaps(spans) {
  const boxes = [...spans].map(box).sort((a, b) => a[0] - b[0]);
  return boxes.filter((b, i) => i && b[0] < boxes[i - 1][0] + boxes[i - 1][2]).length;
}
const measured = {
  width: document.documentElement.clientWidth,
  page: document.documentElement.scrollWidth,
  figures: [...document.querySelectorAll("figure")].map(figure => ({
    title: figure.querySelector("h3").textContent,
    right: box(figure)[0] + box(figure)[2],
    svgs: [...figure.querySelectorAll("svg")].map(svg => ({
      size: box(svg).slice(2),
      shapes: [...svg.querySelectorAll("path, rect")].map(shape => box(shape).slice(2)),
    })),
    x_overlaps: [...figure.querySelectorAll(".x")].map(x => overlaps(x.children)),
    has_empty: figure.querySelector(".empty") !== null,
  })),
};
const note = parent.document.createElement("pre");
note.id = "measured";
note.textContent = JSON.stringify(measured);
parent.document.body.append(note);
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    return find_browser()


def drawn(browser: str, page: str, width: int, folder: Path) -> Any:
    """What the browser made of `page` in a frame of `width` pixels; windows have a least width."""
    path = folder / "report.html"
    content = escape(page.replace("</body>", MEASURE + "</body>"))
    path.write_text(f'<iframe srcdoc="{content}" style="width:{width}px; height:900px; border:0"></iframe>')
    size, profile = "--window-size=1400,1000", f"--user-data-dir={folder / 'profile'}"
    run = subprocess.run(
        [browser, *FLAGS, size, profile, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'<pre id="measured">(.*?)</pre>', run.stdout, re.DOTALL)
    assert found, run.stdout[-2000:] + run.stderr[-2000:]
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("width", [1280, 400])
def test_the_charts_draw(browser: str, tmp_path: Path, width: int) -> None:
    seen = drawn(browser, render(made_result()), width, tmp_path)
    assert seen["page"] <= seen["width"] <= width  # nothing sticks out sideways
    charts = [figure for figure in seen["figures"] if figure["svgs"]]
    assert len(charts) == 12 and not any(figure["has_empty"] for figure in charts)
    for figure in charts:
        for svg in figure["svgs"]:
            assert svg["size"][0] > 200 and svg["size"][1] > 20, figure["title"]
            assert all(max(shape) > 0 for shape in svg["shapes"]), figure["title"]
            assert len(svg["shapes"]) >= 2, figure["title"]
        assert figure["right"] <= seen["width"] and not any(figure["x_overlaps"]), figure["title"]
    assert "Requests over time" in [figure["title"] for figure in charts]


def test_an_empty_run_says_so(browser: str, tmp_path: Path) -> None:
    seen = drawn(browser, render(empty_result()), 800, tmp_path)
    assert sum(figure["has_empty"] for figure in seen["figures"]) == 12
    assert not any(figure["svgs"] for figure in seen["figures"])
