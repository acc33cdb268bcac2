"""A job's prompt, whatever it is made from."""

from loadgen.clients import Prompt
from loadgen.prefixes import Prefixes
from loadgen.prompts import Prompts
from loadgen.traces.row import Blocks
from loadgen.workload import Job


class Contents:
    """Prompts of jobs.

    Args:
        texts: makes text by length; None if every job has content of its own.
        prefixes: makes token ids by hash id.
    """

    def __init__(self, texts: Prompts | None, prefixes: Prefixes) -> None:
        self._texts = texts
        self._prefixes = prefixes

    def prompt(self, job: Job) -> Prompt:
        """Recorded blocks as token ids; a given text or chat as it is; else text of the recorded length."""
        if job.content is None:
            return self._made(job)
        if isinstance(job.content, Blocks):
            return self._prefixes.prompt(job.content, _length(job), job.index)
        return job.content

    def _made(self, job: Job) -> str:
        if self._texts is None:
            raise ValueError(f"job {job.index} needs text, and none was measured")
        return self._texts.prompt(job.index, _length(job))


def _length(job: Job) -> int:
    if job.num_input is None:
        raise ValueError(f"job {job.index} has neither a text nor a length")
    return job.num_input
