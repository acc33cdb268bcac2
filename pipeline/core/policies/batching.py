"""Batching: when waiting sequences may join those on the device."""

from pipeline.core.sequence import Sequence


class Gather:
    """A pause before the first sequences enter an idle device, so that a burst becomes one batch.

    It begins when the first of them waits and ends after `gather_ns`, or once they fill the device. 0: none.
    """

    def __init__(self, gather_ns: int, max_num_seqs: int) -> None:
        self.end_ns: int | None = None
        """Of the pause that goes on."""
        self._gather_ns = gather_ns
        self._max_num_seqs = max_num_seqs

    def is_over(self, num_running: int, num_waiting: int, now_ns: int) -> bool:
        if num_waiting and not num_running:
            if self.end_ns is None:
                self.end_ns = now_ns + self._gather_ns
            if now_ns < self.end_ns and num_waiting < self._max_num_seqs:
                return False
        self.end_ns = None
        return True


class Continuous:
    """Whoever fits joins the next step."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather

    @property
    def wake_ns(self) -> int | None:
        return self._gather.end_ns

    def opens(self, num_running: int, num_waiting: int, now_ns: int) -> bool:
        return self._gather.is_over(num_running, num_waiting, now_ns)

    def joined(self, sequence: Sequence) -> None:
        return None

    def filled(self) -> None:
        return None

    def num_padding(self, num_running: int) -> int:
        return 0


class Static:
    """A batch is filled, then runs until all its sequences have ended. The baseline to compare with.

    The tokens that a padded batch would waste are counted, not computed: prompts are padded to the longest
    (or to `pad_to`, if that is more), and every step has a row for each sequence that has ended already.
    """

    def __init__(self, gather: Gather, pad_to: int = 0) -> None:
        self._gather = gather
        self._pad_to = pad_to
        self._is_filling = False
        self._prompt_lens: list[int] = []
        self._num_prompt_padding = 0

    @property
    def wake_ns(self) -> int | None:
        return self._gather.end_ns

    def opens(self, num_running: int, num_waiting: int, now_ns: int) -> bool:
        if self._gather.is_over(num_running, num_waiting, now_ns) and not num_running:
            self._is_filling = True
            self._prompt_lens = []
            self._num_prompt_padding = 0
        return self._is_filling

    def joined(self, sequence: Sequence) -> None:
        self._prompt_lens.append(sequence.num_prompt_tokens)

    def filled(self) -> None:
        self._is_filling = False

    def num_padding(self, num_running: int) -> int:
        lengths = self._prompt_lens
        padded_len = max([self._pad_to, *lengths])
        num_new = padded_len * len(lengths) - sum(lengths) - self._num_prompt_padding
        self._num_prompt_padding += num_new
        return num_new + len(lengths) - num_running
