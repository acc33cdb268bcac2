"""Greedy answers to prompts: how often a way of keeping KV gives the same ones."""

from collections.abc import Sequence

import msgspec
import torch

from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError
from pipeline.gpu.evaluation.evaluate import BLOCK_SIZE, Progress, Setting, Weights, open_setting
from pipeline.gpu.evaluation.reader import Reader

Answers = list[list[int]]


class AnswerScore(msgspec.Struct, frozen=True):
    """What one setting answered."""

    weights: Weights
    kv: str
    num_answers: int
    num_tokens: int
    """Of the baseline's answers."""
    same: float
    """Share of the answers that are the baseline's, token for token."""
    agreement: float
    """Share of the baseline's tokens that come before the first that differs."""


def compare_answers(
    card: ModelCard, prompts: list[list[int]], settings: list[Setting], max_tokens: int, progress: Progress
) -> list[AnswerScore]:
    """Each setting answers all; the first is the baseline.

    Raises ConfigError if a prompt is too long for the model, or a setting cannot run.
    """
    longest, limit = max(map(len, prompts)), card.architecture.max_position
    if longest + max_tokens > limit:
        raise ConfigError(
            f"a prompt of {longest} tokens and an answer of {max_tokens} are more than the model's {limit}"
        )
    baseline: Answers = []
    scores = []
    for setting in settings:
        progress(f"{len(prompts)} answers with {setting} ...")
        answers = answer_all(card, prompts, setting, max_tokens)
        baseline = baseline or answers
        pairs = list(zip(baseline, answers, strict=True))
        num_tokens = sum(map(len, baseline))
        scores.append(
            AnswerScore(
                weights=setting.weights,
                kv=setting.kv_name,
                num_answers=len(answers),
                num_tokens=num_tokens,
                same=sum(mine == its for mine, its in pairs) / len(pairs),
                agreement=sum(num_alike(mine, its) for mine, its in pairs) / num_tokens,
            )
        )
    return scores


def num_alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens from the start on that are the same."""
    differing = (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, min(len(a), len(b)))


@torch.inference_mode()
def answer_all(card: ModelCard, prompts: list[list[int]], setting: Setting, max_tokens: int) -> Answers:
    """Up to max_tokens tokens each, the end of sequence included."""
    opened, answers = open_setting(card, setting), []
    for prompt in prompts:
        size = len(prompt) + max_tokens
        reader = Reader(opened, card.architecture, size, BLOCK_SIZE, setting.retention(size))
        answers.append(_answer(reader, prompt, max_tokens, card.eos_ids))
    return answers


def _answer(reader: Reader, prompt: list[int], max_tokens: int, eos_ids: Sequence[int]) -> list[int]:
    *_, logits = reader.read(prompt)
    answer = [int(logits[-1].argmax())]
    while len(answer) < max_tokens and answer[-1] not in eos_ids:
        answer.append(int(reader.step(answer[-1:])[-1].argmax()))
    return answer
