"""Every field of sampling over real sockets, with a small random model through all stages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.messages import Admitted, SamplingParams
from pipeline.runtime.testing import FakeRunner
from tests.e2e.world import serving
from tests.tiny_models import TOKENS, write_folder

DEVICE = """
[device]
device = "cpu"
placement = "thread"
backend = "torch"
dtype = "float32"
num_blocks = {num_blocks}
max_num_seqs = 16
max_num_batched_tokens = 64
"""
EOS, LETTERS = 2, [TOKENS.index(letter) for letter in "abcdefgh"]

Ask = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    folder = write_folder(tmp_path_factory.mktemp("model"))
    return describe(folder, str(folder))


def run(
    card: ModelCard, check: Callable[[Ask], Awaitable[None]], num_blocks: int = 200, more: str = ""
) -> int:
    """How many preemptions there were."""

    async def main() -> int:
        async with serving(card, toml=DEVICE.format(num_blocks=num_blocks) + more) as server:
            async with aiohttp.ClientSession(server.url) as session:
                await check(asker(session))
            await server.rest()
            return server.scheduler.num_preemptions

    return asyncio.run(main())


def asker(session: aiohttp.ClientSession) -> Ask:
    async def ask(path: str = "/v1/completions", status: int = 200, **fields: Any) -> dict[str, Any]:
        body = {"max_tokens": 8, "temperature": 0} | fields
        if path == "/v1/completions":
            body.setdefault("prompt", "hello world")
        async with session.post(path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == status, answer
            return answer

    return ask


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


def test_ids_are_allowed_biased_and_banned(card: ModelCard) -> None:
    async def check(ask: Ask) -> None:
        answer = await ask(allowed_token_ids=LETTERS, temperature=1.5, max_tokens=30)
        assert set(text_of(answer)) <= set("abcdefgh") and len(text_of(answer)) == 30
        answer = await ask(logit_bias={str(LETTERS[2]): 100})
        assert text_of(answer) == "c" * 8
        answer = await ask(logit_bias={str(LETTERS[2]): 100, str(LETTERS[3]): 30}, bad_words=["ccd", "dd"])
        assert text_of(answer) == "c" * 8
        answer = await ask(logit_bias={str(LETTERS[2]): 100, str(LETTERS[3]): 60}, bad_words=["ccc"])
        assert text_of(answer) == "ccdccdcc"
        answer = await ask(logit_bias={str(LETTERS[2]): 100, str(LETTERS[3]): 60}, bad_words=["c"])
        assert text_of(answer) == "d" * 8

    run(card, check)


def test_penalties_count_what_has_been_said(card: ModelCard) -> None:
    async def check(ask: Ask) -> None:
        bias = {str(LETTERS[0]): 100, str(LETTERS[1]): 80}
        assert text_of(await ask(logit_bias=bias, allowed_token_ids=LETTERS[:1])) == "a" * 8
        spread = await ask(
            logit_bias={str(k): 100 for k in LETTERS}, presence_penalty=2, frequency_penalty=2, max_tokens=16
        )
        assert len(set(text_of(spread))) > 1
        held = await ask(logit_bias=bias, allowed_token_ids=LETTERS[:2], repetition_penalty=2, prompt="a")
        assert text_of(held)[0] == "b"  # "a" is in the prompt
        again = await ask(logit_bias=bias, allowed_token_ids=LETTERS[:2], presence_penalty=2, prompt="a")
        assert text_of(again)[0] == "a"  # and that is no output (trap 29)

    run(card, check)


def test_where_an_answer_ends(card: ModelCard) -> None:
    async def check(ask: Ask) -> None:
        ends = {str(EOS): 100, str(LETTERS[0]): 50}
        answer = await ask(logit_bias=ends)
        assert text_of(answer) == "" and answer["choices"][0]["finish_reason"] == "stop"
        answer = await ask(logit_bias=ends, min_tokens=3)
        assert text_of(answer) == "aaa" and answer["usage"]["completion_tokens"] == 4
        answer = await ask(logit_bias={str(LETTERS[0]): 100}, min_tokens=3, stop="aa")
        assert text_of(answer) == "aaa"  # looked for in the text after them
        only = {str(LETTERS[0]): 100, str(LETTERS[1]): 60}
        answer = await ask(logit_bias=only, stop_token_ids=[LETTERS[0]])
        assert text_of(answer) == "" and answer["choices"][0]["finish_reason"] == "stop"
        answer = await ask(logit_bias=only, stop_token_ids=[LETTERS[0]], include_stop_str_in_output=True)
        assert text_of(answer) == "a"
        answer = await ask(logit_bias=only, stop_token_ids=[LETTERS[0]], min_tokens=2)
        assert text_of(answer) == "bb"
        answer = await ask(logit_bias=only, stop="aaa", include_stop_str_in_output=True)
        assert text_of(answer) == "aaa" and answer["usage"]["completion_tokens"] == 3

    run(card, check)


def test_special_tokens_and_prompts_that_are_cut(card: ModelCard) -> None:
    async def check(ask: Ask) -> None:
        always = {"logit_bias": {str(EOS): 100}, "ignore_eos": True, "max_tokens": 2}
        assert text_of(await ask(**always)) == ""
        assert text_of(await ask(**always, skip_special_tokens=False)) == TOKENS[EOS] * 2
        whole = await ask(prompt=LETTERS * 3, truncate_prompt_tokens=5)
        assert whole["usage"]["prompt_tokens"] == 5
        assert text_of(whole) == text_of(await ask(prompt=(LETTERS * 3)[-5:]))
        fits = await ask(prompt=LETTERS * 50, truncate_prompt_tokens=-1)
        assert fits["usage"]["prompt_tokens"] == 256 - 8

    run(card, check)


REQUESTS: list[dict[str, Any]] = [
    {
        "prompt": f"hello {subject} world hello",
        "max_tokens": 14,
        "ignore_eos": True,
        "temperature": (0, 0.9, 1.3)[k % 3],
        "seed": k,
        "frequency_penalty": 0.7 if k % 2 else 0,
        "repetition_penalty": 1.3 if k % 4 else 1,
        "bad_words": ["he", "ll w"] if k % 3 == 0 else [],
        "min_p": 0.02 * (k % 2),
        "typical_p": 0.9 if k % 5 == 1 else 1,
        "top_p": 0.9 if k % 2 else 1,
        "logprobs": 3 if k % 3 == 1 else None,
    }
    for k, subject in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight") * 2)
]


def test_an_answer_depends_on_its_request_alone(card: ModelCard) -> None:
    answers: dict[str, list[Any]] = {}

    def together(name: str) -> Callable[[Ask], Awaitable[None]]:
        async def check(ask: Ask) -> None:
            got = await asyncio.gather(*(ask(**request) for request in REQUESTS))
            answers[name] = [each["choices"] for each in got]

        return check

    async def alone(ask: Ask) -> None:
        answers["alone"] = [(await ask(**request))["choices"] for request in REQUESTS]

    run(card, alone)
    run(card, together("together"))
    assert run(card, together("preempted"), num_blocks=24)
    run(card, together("split"), more='[stages.schedule.options]\nseparation = "split"')
    alike = [_texts(answers[name]) for name in ("alone", "together", "preempted", "split")]
    assert alike == [alike[0]] * 4
    assert len(set(_texts(answers["alone"]))) == len(REQUESTS)


def _texts(choices: list[Any]) -> list[str]:
    return [
        str(each[0]["text"]) + str(each[0]["logprobs"] and each[0]["logprobs"]["tokens"]) for each in choices
    ]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"min_p": 1.5}, "min_p", "from 0 to 1"),
    ({"typical_p": 0}, "typical_p", "above 0"),
    ({"presence_penalty": 2.5}, "presence_penalty", "-2 to 2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
    ({"logit_bias": {"999999": 1}}, "logit_bias", "token ids from 0"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "-100 to 100"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "at least one"),
    ({"bad_words": [""]}, "bad_words", "1 to 64"),
    ({"bad_words": ["xyzw" * 8]}, "bad_words", "16 tokens"),
    ({"min_tokens": 9}, "min_tokens", "from 0 to 8"),
    ({"min_tokens": 300, "max_tokens": None}, "min_tokens", "from 0 to 256"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token ids from 0"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or from 1"),
    ({"logprobs": 21}, "logprobs", "from 0 to 20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "from 0 to 20"),
]


def test_what_is_wrong_is_named_with_its_limit(card: ModelCard) -> None:
    async def check(ask: Ask) -> None:
        for fields, param, says in WRONG:
            error = (await ask(status=400, **fields))["error"]
            assert error["param"] == param and says in error["message"], error

    run(card, check)


@pytest.mark.parametrize(("more", "top_k"), [("", 7), ("[model]\ngeneration_defaults = false", 0)])
def test_a_checkpoints_own_sampling_is_the_default(fake_card: ModelCard, more: str, top_k: int) -> None:
    admitted: list[Admitted] = []

    def watched() -> FakeRunner:
        return FakeRunner(before_step=lambda plan: admitted.extend(plan.admitted))

    async def main() -> None:
        card = msgspec.structs.replace(fake_card, generation=SamplingParams(top_k=7))
        async with serving(card, watched, more) as server, aiohttp.ClientSession(server.url) as session:
            ask = asker(session)
            await ask()
            await ask(top_k=3)

    asyncio.run(main())
    assert [each.sampling.top_k for each in admitted] == [top_k, 3]
