"""StepLimit: how many tokens a step may hold. Less for a while after the device ran out of memory in one."""

RECOVERY_STEPS = 1000
"""After so many steps without another failure, twice as many tokens are tried again."""


class StepLimit:
    """`num_tokens` is never over `max_num_tokens`, and never below 1."""

    def __init__(self, max_num_tokens: int) -> None:
        self.num_tokens = max_num_tokens
        self.max_num_tokens = max_num_tokens
        self._steps_left = 0

    def shrink(self) -> None:
        """A step did not fit: half as many, from the next plan on."""
        self.num_tokens = max(1, self.num_tokens // 2)
        self._steps_left = RECOVERY_STEPS

    def renew(self, max_num_tokens: int) -> None:
        """The device says anew what it takes; what was learned of its memory stays."""
        self.max_num_tokens = max_num_tokens
        self.num_tokens = min(self.num_tokens, max_num_tokens) if self._steps_left else max_num_tokens

    def applied(self) -> None:
        """A step has ended well."""
        if not self._steps_left:
            return
        self._steps_left -= 1
        if not self._steps_left:
            self.num_tokens = min(self.max_num_tokens, 2 * self.num_tokens)
            self._steps_left = RECOVERY_STEPS if self.num_tokens < self.max_num_tokens else 0
