"""What is sent for a job, where that depends on answers: the chat so far, and the new turn."""

from collections.abc import Callable

from loadgen.clients import Prompt
from loadgen.traces.row import Message
from loadgen.workload import Job


class Conversations:
    """Remembers the chats that go on.

    Args:
        prompt_of: what is sent for a job that adds nothing to a chat; for one that does, its new turn.
    """

    def __init__(self, jobs: list[Job], prompt_of: Callable[[Job], Prompt]) -> None:
        self._prompt_of = prompt_of
        self._goes_on = {job.after for job in jobs if job.adds_turn}
        self._chats: dict[int | None, tuple[Message, ...]] = {}

    def goes_on(self, job: Job) -> bool:
        """A later turn needs this job's answer."""
        return job.index in self._goes_on

    def prompt(self, job: Job) -> Prompt:
        """The messages given and the answers received so far, and the new turn; else the job's own prompt."""
        prompt = self._prompt_of(job)
        if job.adds_turn:
            prompt = (*self._chats[job.after], *_messages(prompt))
        if self.goes_on(job):
            self._chats[job.index] = _messages(prompt)
        return prompt

    def answered(self, job: Job, text: str) -> None:
        """The answer to `job`, after its `prompt` was made."""
        if self.goes_on(job):
            self._chats[job.index] += (Message("assistant", text),)


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    """Raises ValueError for token ids: no reader makes a chat of them."""
    if isinstance(prompt, list):
        raise ValueError("a chat cannot begin with token ids")  # noqa: TRY004 - the reader's fault, not a type's
    return (Message("user", prompt),) if isinstance(prompt, str) else prompt
