"""Facts: what the rules read, derived from the Evidence once."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from pipeline.doctor import steps as step_facts
from pipeline.doctor.diagnosis import Attribution, StageState
from pipeline.doctor.stages import device_state, of, stage_states
from pipeline.doctor.step_fit import StepFit, fit
from pipeline.doctor.steps import Held
from pipeline.doctor.tails import around, attribution
from pipeline.messages import SEGMENTS
from pipeline.telemetry import Evidence, RequestRecord, Sample

DRAINING = "draining"
SHED = frozenset(("wait_too_long", "deadline_missed"))
"""Codes of core.policies.shedding: the scheduler gave them up, so they count as refused, not as answered."""
NO_ATTRIBUTION = Attribution(99, 0, 0.0, 0.0, {}, 0.0, {}, {})


class Facts:
    """Needs two samples some time apart."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.settings = evidence.settings
        self.samples = evidence.samples
        self.steps = evidence.steps
        self.span_ns = self.samples[-1].at_ns - self.samples[0].at_ns
        self.span_s = self.span_ns / 1e9
        self.finished = [r for r in evidence.requests if r.segments_ns]

    @cached_property
    def attributions(self) -> tuple[Attribution, ...]:
        found = (attribution(self.finished, percent) for percent in (50, 99))
        return tuple(each for each in found if each is not None)

    @property
    def p50(self) -> Attribution:
        return self.attributions[0] if self.attributions else NO_ATTRIBUTION

    @property
    def p99(self) -> Attribution:
        return self.attributions[-1] if self.attributions else NO_ATTRIBUTION

    @cached_property
    def slowest(self) -> Sequence[RequestRecord]:
        """The requests around p99 of E2E."""
        return around(self.finished, 99)

    @cached_property
    def stages(self) -> tuple[StageState, ...]:
        """In data order, the device after the stage that drives it."""
        stages = stage_states(self.samples, self.finished)
        device = device_state(self.steps, self.span_s, self.settings.credits)
        place = [stage.name for stage in stages].index("execute") + 1
        return (*stages[:place], device, *stages[place:])

    def stage(self, name: str) -> StageState:
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def encoding_stages(self) -> tuple[StageState, ...]:
        """Those between the door and schedule: tokenize, and others that the graph may have there."""
        names = [stage.name for stage in self.stages]
        return self.stages[names.index("ingress") + 1 : names.index("schedule")]

    @property
    def text_stages(self) -> tuple[StageState, ...]:
        """From detokenize to stream, in data order."""
        names = [stage.name for stage in self.stages]
        return self.stages[names.index("detokenize") : names.index("stream") + 1]

    @cached_property
    def busiest_text(self) -> tuple[StageState, float]:
        """Of those before stream, the one that takes most of the loop's time, and its share of it in the
        busiest stretch. What it waits for room in the next one is not counted.
        """
        own = [
            (stage, stage.peak_utilisation - self.blocked_share(onward.name))
            for stage, onward in pairwise(self.text_stages)
        ]
        return max(own, key=lambda each: each[1])

    @cached_property
    def step_fit(self) -> StepFit | None:
        return fit(self.steps)

    @cached_property
    def held(self) -> dict[Held, float]:
        """Why sequences waited for a place in a step, as shares of the time in which some did."""
        return step_facts.held_shares(self.steps, self.settings)

    @cached_property
    def paused_share(self) -> float:
        """Share of the time in slots in which clients with full buffers kept them."""
        wait = SEGMENTS.index("schedule.wait")
        in_slots_ns = sum(r.e2e_ns - r.ttft_segments_ns[wait] for r in self.finished if r.ttft_segments_ns)
        return min(1.0, sum(r.paused_ns for r in self.finished) / max(1, in_slots_ns))

    @cached_property
    def device_busy(self) -> float:
        """Share of the time at work, idle time left out."""
        return step_facts.busy_share(self.steps)

    @cached_property
    def step_ns(self) -> float:
        """A typical step (p50)."""
        return step_facts.quantile([s.end_ns - s.begin_ns for s in self.steps], 0.5)

    @cached_property
    def plain_step_ns(self) -> float:
        """A typical step of decode rows alone; where there was none, by the fit."""
        decoding = [s for s in self.steps if s.num_decode_tokens]
        plain = [s.end_ns - s.begin_ns for s in decoding if not s.num_prefill_tokens]
        prefill_ns = self.step_fit.prefill_ns if self.step_fit else 0.0
        return step_facts.quantile(
            plain or [s.end_ns - s.begin_ns - prefill_ns * s.num_prefill_tokens for s in decoding], 0.5
        )

    @cached_property
    def queue_ns(self) -> float:
        """Wait for a place in a step, in the TTFT of p99: beyond the steps under way when it came."""
        steps_ns = step_facts.quantile([s.end_ns - s.begin_ns for s in self.steps], 0.95)
        natural_ns = self.settings.credits * steps_ns
        return max(0.0, self.p99.ttft_segments_ns.get("schedule.wait", 0.0) - natural_ns)

    @cached_property
    def starved_share(self) -> float:
        """Share of the window in which the event loop had to wait for a CPU."""
        return (self.samples[-1].run_delay_ns - self.samples[0].run_delay_ns) / self.span_ns

    @cached_property
    def num_taken(self) -> int:
        """Requests that the door took in; by evidence that does not say, messages to tokenize."""
        first, last = self.samples[0], self.samples[-1]
        if first.num_received is not None and last.num_received is not None:
            return last.num_received - first.num_received
        return max(0, of(last, "tokenize").sent - of(first, "tokenize").sent)

    @cached_property
    def refused(self) -> dict[str, int]:
        """Requests that the door refused, by code; while it drained, they do not count."""
        first, last = self.samples[0].refused, self.samples[-1].refused
        counts = {code: count - first.get(code, 0) for code, count in last.items() if code != DRAINING}
        return {code: count for code, count in counts.items() if count > 0}

    @cached_property
    def dropped(self) -> dict[str, int]:
        """Requests that were taken in and then waited for too long, by code."""
        return dict(Counter(r.code for r in self.evidence.requests if r.code in SHED))

    @cached_property
    def num_offered(self) -> int:
        """Requests that came to the door."""
        return max(self.num_taken, sum(self.dropped.values())) + sum(self.refused.values())

    def blocked_share(self, name: str, senders: int = 1) -> float:
        """Share of the window in which each of `senders` waited for room in this stage's inbox."""
        first, last = of(self.samples[0], name), of(self.samples[-1], name)
        return (last.blocked_ns - first.blocked_ns) / (self.span_ns * senders)

    @property
    def later(self) -> Sequence[Sample]:
        """All but the first: values that are "since the sample before" belong to the window only there."""
        return self.samples[1:]
