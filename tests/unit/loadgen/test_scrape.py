"""The server's own figures: parsed, and turned into a run's measures."""

import pytest

from loadgen.errors import ServerError
from loadgen.scrape import Scrape, gauge
from loadgen.tune.chain import Cpu, Watched, of_server, segments

BEFORE = """\
# HELP stageline_tokens_total Tokens
# TYPE stageline_tokens_total counter
stageline_tokens_total{kind="prompt"} 100.0
stageline_tokens_total{kind="output"} 10.0
# TYPE stageline_segment_seconds histogram
stageline_segment_seconds_bucket{le="+Inf",segment="schedule.wait"} 2.0
stageline_segment_seconds_count{segment="schedule.wait"} 2.0
stageline_segment_seconds_sum{segment="schedule.wait"} 1.0
# TYPE stageline_kv_blocks gauge
stageline_kv_blocks 200.0
stageline_kv_blocks_used 7.0
stageline_steps_total 5.0
stageline_preemptions_total 1.0
stageline_device_busy_seconds_total 1.5
"""
AFTER = """\
# TYPE stageline_tokens_total counter
stageline_tokens_total{kind="prompt"} 500.0
stageline_tokens_total{kind="output"} 210.0
# TYPE stageline_segment_seconds histogram
stageline_segment_seconds_bucket{le="+Inf",segment="schedule.wait"} 12.0
stageline_segment_seconds_count{segment="schedule.wait"} 12.0
stageline_segment_seconds_sum{segment="schedule.wait"} 4.0
stageline_kv_blocks 200.0
stageline_kv_blocks_used 0.0
stageline_steps_total 55.0
stageline_preemptions_total 4.0
stageline_device_busy_seconds_total 9.5
"""


def test_totals_and_labels() -> None:
    scrape = Scrape(BEFORE)
    assert scrape.total("stageline_tokens_total") == 110
    assert scrape.total("stageline_tokens_total", kind="output") == 10
    assert scrape.total("stageline_tokens_total", kind="none") is None and scrape.total("absent") is None
    assert scrape.labels("stageline_tokens_total", "kind") == ["prompt", "output"]


def test_a_gauge_is_found_by_its_whole_name() -> None:
    assert gauge(BEFORE, "stageline_kv_blocks") == 200 and gauge(BEFORE, "stageline_kv_blocks_used") == 7
    assert gauge(BEFORE, "stageline_kv") is None and gauge("x 1e+06\n", "x") == 1e6


def test_what_is_no_prometheus_text_is_an_error() -> None:
    with pytest.raises(ServerError, match="not in the Prometheus text format"):
        Scrape("<html>no</html> {\n")


def test_measures_are_what_grew_in_the_run() -> None:
    watched = Watched(
        wall_s=10.0,
        before=Scrape(BEFORE),
        after=Scrape(AFTER),
        kv_blocks_peak=50.0,
        rss_peak_bytes=3 * 2**30,
        cpu_before=Cpu(server_s=3.0, generator_s=1.0, machine_s=100.0),
        cpu_after=Cpu(server_s=18.0, generator_s=2.0, machine_s=120.0),
    )
    measures = of_server(watched)
    assert segments(measures) == {"schedule.wait": pytest.approx(300.0)}
    del measures["segment schedule.wait"]
    assert measures == pytest.approx(
        {
            "preemptions": 3,
            "device busy %": 80,
            "KV peak %": 25,
            "output tokens/step": 4,
            "all tokens/step": 12,
            "server CPU %": 150,
            "others' CPU %": 40,
            "RSS peak MiB": 3072,
        }
    )


def test_a_server_without_metrics_leaves_them_out() -> None:
    assert of_server(Watched(10.0, None, None, None, None, None, None)) == {}
