"""Gate: how long a new request would wait for the device, and whether to let it in.

Shared by the door, which asks, and the scheduler's stage, which tells what it sees; both run on one loop.
Little's law: the wait is the work queued before a request over the rate at which such work is served. Two
kinds of work can hold a request up, and the longer of the two waits counts:

* Room. A request's share of the device is that of its slot or of its KV blocks, whichever is larger. While
  the device is full, shares become free at a measured rate; the queue waits for what it needs and is missing.
* Prefill. Queued prompt tokens over the measured rate at which prompts are computed while there is room.

How much of the queue is before a newcomer depends on the order (core.standing). Requests still being
tokenized count too: their prompts are estimated from their characters, and everybody's answer from the
answers so far. Rates are measured only while they bound the service. All this is an estimate: what keeps the
promise is that the scheduler drops whoever has waited too long (policies.shedding).
"""

import math
from collections import Counter
from dataclasses import dataclass

from pipeline.core.block_pool import blocks_for
from pipeline.core.busy_rate import BusyRate
from pipeline.core.retention import Retentions
from pipeline.core.standing import Claim, Standing, by_arrival
from pipeline.errors import RequestError
from pipeline.messages import DeviceReady, GenerateRequest, Terms

MAX_RETRY_AFTER_S = 120
_MIN_RELEASES = 4
_LIFETIMES = 4
"""Rates remember so many lifetimes of a request on the device: a full batch may end all at once."""
_MIN_MEMORY_NS = 1_000_000_000
_FIRST_LIFETIME_NS = 5_000_000_000
_GAIN = 1 / 16
_FIRST_CHARS_PER_TOKEN = 4.0
_FIRST_OUTPUT_TOKENS = 128.0


def allowed_wait_ns(terms: Terms, max_wait_ns: int | None) -> int | None:
    """How long a request may wait for the device: half its patience, but never over the server's promise.

    Half, since whoever has waited that long is likely to leave before he is served. None: without limit.
    """
    if terms.patience_ms is None:
        return max_wait_ns
    half_ns = int(terms.patience_ms * 5e5)
    return half_ns if max_wait_ns is None else min(half_ns, max_wait_ns)


@dataclass(slots=True)
class _Entry:
    """A request between the door and its end."""

    terms: Terms
    num_chars: int
    """0 where the prompt came as token ids."""
    num_prompt_tokens: int
    max_tokens: int | None
    claim: Claim
    share: float
    is_generated: bool
    """Its answer is text, not an embedding."""
    num_image_tokens: int = 0
    """Of its prompt."""
    started_ns: int | None = None
    """When it got its slot."""
    is_released: bool = False


class Gate:
    """Lets everybody in until `open` has told it what there is."""

    def __init__(self) -> None:
        self._device: DeviceReady | None = None
        self._max_wait_ns: int | None = None
        self._entries: dict[int, _Entry] = {}
        self._standing: Standing = by_arrival
        self._retentions: Retentions | None = None
        self._queued: Counter[Claim] = Counter()
        self._queued_shares: dict[Claim, float] = {}
        self._queued_tokens: dict[Claim, int] = {}
        self._free_share = 1.0
        self._is_full = self._is_behind = False
        self._told_ns = 0
        self._turnover = BusyRate()
        self._prefill = BusyRate()
        self._lifetime_ns = 0.0
        self._mean_share = 0.0
        self._chars_per_token = _FIRST_CHARS_PER_TOKEN
        self._output_tokens = _FIRST_OUTPUT_TOKENS

    def open(
        self,
        device: DeviceReady,
        max_wait_ns: int | None,
        standing: Standing = by_arrival,
        retentions: Retentions | None = None,
    ) -> None:
        """The device is ready.

        Args:
            max_wait_ns: the longest wait that the server promises; None: no promise.
            retentions: what of their contexts requests keep; None: all.
        """
        self._device = device
        self._max_wait_ns = max_wait_ns
        self._standing = standing
        self._retentions = retentions

    # Asked at the door ----------------------------------------------------------------------

    def refusal(self, request: GenerateRequest) -> RequestError | None:
        """Why this request is better sent away at once: it would wait for longer than it may."""
        allowed_ns = allowed_wait_ns(request.terms, self._max_wait_ns)
        wait_ns = self._wait_of(self._entry(request))
        if allowed_ns is None or wait_ns is None or wait_ns <= allowed_ns:
            return None
        return RequestError(
            f"This request would wait about {wait_ns / 1e9:.1f} s for the device, "
            f"and may wait {allowed_ns / 1e9:.1f} s; try again later.",
            status=429,
            code="queue_wait",
            retry_after_s=_whole_seconds(wait_ns),
        )

    def retry_after_s(self) -> int | None:
        """When a request of the usual size would be served; None: not known."""
        wait_ns = self._usual_wait_ns()
        return None if wait_ns is None else _whole_seconds(wait_ns)

    def enter(self, request: GenerateRequest) -> None:
        """It is in."""
        entry = self._entries[request.request_id] = self._entry(request)
        self._mean_share += _GAIN * (entry.share - self._mean_share) if self._mean_share else entry.share
        self._queue(entry, +1)

    def leave(self, request_id: int, num_output_tokens: int) -> None:
        """It has ended, with so many tokens for its client. A no-op for one that has left."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        if entry.started_ns is None:
            self._queue(entry, -1)
        elif entry.is_generated:
            self._output_tokens += _GAIN * (num_output_tokens - self._output_tokens)

    # Told by the scheduler's stage ----------------------------------------------------------

    def tokenized(self, request_id: int, num_prompt_tokens: int) -> None:
        """Its prompt has so many tokens."""
        entry = self._entries.get(request_id)
        if entry is None:
            return
        num_text_tokens = num_prompt_tokens - entry.num_image_tokens
        if entry.num_chars and num_text_tokens > 0:
            ratio = entry.num_chars / num_text_tokens
            self._chars_per_token += _GAIN * (ratio - self._chars_per_token)
        self._queue(entry, -1)
        entry.num_prompt_tokens = num_prompt_tokens
        entry.share = self._share(entry.terms, num_prompt_tokens, entry.max_tokens)
        self._queue(entry, +1)

    def started(self, request_id: int, now_ns: int) -> None:
        """It has got a slot. A no-op for one that had one before it was preempted."""
        entry = self._entries.get(request_id)
        if entry is not None and entry.started_ns is None:
            entry.started_ns = now_ns
            self._queue(entry, -1)

    def prefilled(self, num_tokens: int) -> None:
        """So many prompt tokens have been computed since `planned`."""
        if self._is_behind:
            self._prefill.count(num_tokens)

    def released(self, request_id: int, now_ns: int) -> None:
        """It has ended since `planned`, and given back what it held. A no-op for one that held nothing."""
        entry = self._entries.get(request_id)
        if entry is None or entry.started_ns is None or entry.is_released:
            return
        entry.is_released = True
        lifetime_ns = now_ns - entry.started_ns
        self._lifetime_ns += _GAIN * (lifetime_ns - self._lifetime_ns) if self._lifetime_ns else lifetime_ns
        if self._is_full:
            self._turnover.count(entry.share)

    def planned(self, num_free_slots: int, num_free_blocks: int, now_ns: int) -> None:
        """What was left free by the latest plan. The last call of each wake-up."""
        device = self._device
        if device is None:
            return
        self._pass_time(now_ns)
        self._free_share = min(num_free_slots / device.max_num_seqs, num_free_blocks / device.num_blocks)
        self._is_full = self._free_share < max(self._mean_share, 1 / device.max_num_seqs)
        self._is_behind = not self._is_full and bool(self._queued)

    # Shown ----------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """For /metrics. What has not been measured is absent."""
        shown: dict[str, float] = {"gate_queued_prefill_tokens": sum(self._queued_tokens.values())}
        wait_ns = self._usual_wait_ns()
        if wait_ns is not None:
            shown["gate_predicted_wait_seconds"] = wait_ns / 1e9
        per_s = self._turnover.per_ns * 1e9 / self._mean_share if self._mean_share else 0.0
        if per_s and self._is_measured:
            shown["gate_service_requests_per_second"] = per_s
            if self._max_wait_ns is not None:
                shown["gate_queue_bound_requests"] = per_s * self._max_wait_ns / 1e9
        return shown

    # The estimate ---------------------------------------------------------------------------

    @property
    def _is_measured(self) -> bool:
        return self._turnover.num_done >= _MIN_RELEASES and self._turnover.per_ns > 0

    def _wait_of(self, entry: _Entry) -> float | None:
        return self._wait_ns(
            self._standing(entry.claim, entry.share, self._queued_shares) + entry.share,
            self._standing(entry.claim, entry.num_prompt_tokens, self._queued_tokens),
        )

    def _usual_wait_ns(self) -> float | None:
        return self._wait_ns(
            sum(self._queued_shares.values()) + self._mean_share, sum(self._queued_tokens.values())
        )

    def _wait_ns(self, share: float, num_tokens: float) -> float | None:
        """Until so much has been served; None while its rate has not been measured.

        Where the latest plan left no prompt waiting, no wait for prefill is predicted, whatever its rate was:
        an old rate must not keep out those who would show a better one.
        """
        if self._device is None:
            return None
        backlog = share - self._free_share
        for_room_ns = 0.0
        if backlog > 0:
            if not self._is_measured:
                return None
            for_room_ns = backlog / self._turnover.per_ns
        if not self._is_behind or not self._prefill.per_ns:
            return for_room_ns
        return max(for_room_ns, num_tokens / self._prefill.per_ns)

    def _entry(self, request: GenerateRequest) -> _Entry:
        num_chars, num_tokens = 0, 0
        if isinstance(request.prompt, str):
            num_chars = len(request.prompt)
        elif request.chat is not None:
            num_chars = sum(len(message.content) for message in request.chat)
        else:
            num_tokens = len(request.prompt or ())
        num_tokens = num_tokens or math.ceil(num_chars / self._chars_per_token)
        num_tokens += request.num_image_tokens
        max_tokens = request.sampling.max_tokens
        terms = request.terms
        claim = Claim(terms.tenant, terms.priority, self._num_output_tokens(max_tokens).bit_length())
        share = self._share(terms, num_tokens, max_tokens)
        return _Entry(
            terms,
            num_chars,
            num_tokens,
            max_tokens,
            claim,
            share,
            not request.pooling,
            request.num_image_tokens,
        )

    def _share(self, terms: Terms, num_prompt_tokens: int, max_tokens: int | None) -> float:
        """Of the device: of its slots or its blocks, whichever is more."""
        device = self._device
        if device is None:
            return 0.0
        num_tokens = num_prompt_tokens + self._num_output_tokens(max_tokens)
        num_blocks = blocks_for(num_tokens, device.block_size)
        if self._retentions is not None:
            num_blocks = min(num_blocks, self._retentions.max_blocks(terms, num_tokens))
        return min(1.0, max(1 / device.max_num_seqs, num_blocks / device.num_blocks))

    def _num_output_tokens(self, max_tokens: int | None) -> int:
        """To expect."""
        expected = self._output_tokens
        return int(expected if max_tokens is None else min(expected, max_tokens))

    def _queue(self, entry: _Entry, sign: int) -> None:
        """It begins (+1) or ceases (-1) to be queued."""
        claim = entry.claim
        self._queued[claim] += sign
        if not self._queued[claim]:
            del self._queued[claim], self._queued_shares[claim], self._queued_tokens[claim]
            return
        self._queued_shares[claim] = self._queued_shares.get(claim, 0.0) + sign * entry.share
        self._queued_tokens[claim] = self._queued_tokens.get(claim, 0) + sign * entry.num_prompt_tokens

    def _pass_time(self, now_ns: int) -> None:
        elapsed_ns, self._told_ns = now_ns - self._told_ns, now_ns
        memory_ns = max(_MIN_MEMORY_NS, int(_LIFETIMES * (self._lifetime_ns or _FIRST_LIFETIME_NS)))
        if self._is_full:
            self._turnover.pass_time(elapsed_ns, memory_ns)
        if self._is_behind:
            self._prefill.pass_time(elapsed_ns, memory_ns)


def _whole_seconds(wait_ns: float) -> int:
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(wait_ns / 1e9)))
