"""Allowance: what one key may still use - requests and tokens a minute, and requests at a time."""

from dataclasses import dataclass

from pipeline.core.rate_limit import RateLimit
from pipeline.errors import RequestError

UNKNOWN_TOKENS = 512
"""Counted for an answer that names no max_tokens, until it has ended."""


@dataclass(slots=True)
class Charge:
    """What was counted for requests that came together; settled as they end."""

    num_left: int
    """Requests of them that have not ended."""
    tokens_each: int


class Allowance:
    """Single loop. Counting and refusing are one call, so that two requests cannot take the same room.

    Tokens are counted twice: max_tokens when a request comes, for nobody knows yet how long it will be, and
    what it really was when it ends.

    Args:
        requests_per_min: and the others: above 0, or None for no limit.
    """

    def __init__(
        self,
        requests_per_min: int | None = None,
        tokens_per_min: int | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        self._requests = RateLimit(requests_per_min) if requests_per_min else None
        self._tokens = RateLimit(tokens_per_min) if tokens_per_min else None
        self._max_concurrent = max_concurrent
        self._num_live = 0

    def admit(self, num_requests: int, max_tokens: int | None, now_ns: int) -> Charge:
        """Count requests of so many tokens each, all or none. Raises RequestError 429."""
        tokens_each = max_tokens or UNKNOWN_TOKENS
        amounts = (
            ("requests", self._requests, num_requests),
            ("tokens", self._tokens, num_requests * tokens_each),
        )
        self._check_concurrent(num_requests)
        for what, limit, amount in amounts:
            if limit is not None and (wait_ns := limit.wait_ns(amount, now_ns)):
                raise _over(what, limit, wait_ns)
        for _, limit, amount in amounts:
            if limit is not None:
                limit.take(amount, now_ns)
        self._num_live += num_requests
        return Charge(num_requests, tokens_each)

    def settle(self, charge: Charge, num_tokens: int, now_ns: int) -> None:
        """One of them has ended, having used so many tokens, prompt and answer."""
        charge.num_left -= 1
        self._num_live -= 1
        if self._tokens is None:
            return
        if num_tokens > charge.tokens_each:
            self._tokens.take(num_tokens - charge.tokens_each, now_ns)
        else:
            self._tokens.give_back(charge.tokens_each - num_tokens)

    def _check_concurrent(self, num_requests: int) -> None:
        limit = self._max_concurrent
        if limit is not None and self._num_live + num_requests > limit:
            raise RequestError(
                f"This key may have {limit} live requests, and has {self._num_live}.",
                status=429,
                code="too_many_requests_of_key",
                retry_after_s=1,
            )


def _over(what: str, limit: RateLimit, wait_ns: int) -> RequestError:
    wait_s = max(1, -(-wait_ns // 1_000_000_000))
    return RequestError(
        f"This key may use {limit.per_min} {what} a minute; there is room again in {wait_s} s.",
        status=429,
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )
