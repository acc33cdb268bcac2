"""POST /v1/responses: OpenAI's newer shape, the stateless subset of it whose output is text."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pipeline.core.wire.chat import parse_messages
from pipeline.core.wire.choices import Result
from pipeline.core.wire.faults import error_object
from pipeline.core.wire.fields import Fields, decode_object, shown, wrong_content
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.requests import Wanted, wanted_chat
from pipeline.core.wire.usage import finish_word
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, Completion, FinishReason, TokenLogprob

_encode = msgspec.json.Encoder().encode
_TEXT_PARTS = ("input_text", "output_text", "text")

NEUTRAL: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "include": ([],),
    "max_tool_calls": (),
    "metadata": ({},),
    "parallel_tool_calls": (True, False),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "text": ({"format": {"type": "text"}},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""What is not built, and the values that ask for nothing. Nothing is stored: nothing can be referred to."""


def parse_response(body: bytes, limits: Limits, fresh_seed: int) -> list[Wanted]:
    """`input`, a text or messages, with `instructions` before it. One answer."""
    fields = Fields(decode_object(body))
    chat = parse_messages(_messages(fields.take("input")), images=limits.images, name="input")
    if instructions := fields.text("instructions"):
        chat.insert(0, ChatMessage("system", instructions))
    most = fields.integer("max_output_tokens", 1, limits.max_model_len)
    wanted = wanted_chat(fields, limits, fresh_seed, chat, NEUTRAL)
    if wanted.sampling.max_tokens is not None:
        raise RequestError(
            "This endpoint calls it 'max_output_tokens'.", param="max_tokens", code="unsupported_field"
        )
    if wanted.tells_prompt:
        raise RequestError(
            "'prompt_logprobs' is a field of completions.", param="prompt_logprobs", code="unsupported_field"
        )
    return [replace(wanted, sampling=replace(wanted.sampling, max_tokens=most))]


def _messages(value: object) -> list[object]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise wrong_content("input", "a string or a list of messages", value)
    return [_message(index, item) for index, item in enumerate(value)]


def _message(index: int, item: object) -> object:
    path = f"input[{index}]"
    if not isinstance(item, dict):
        raise wrong_content(path, "a message", item)
    fields = Fields(dict(item), path + ".")
    kind = fields.take("type")
    if kind not in (None, "message"):
        raise RequestError(
            f"'{path}.type' must be \"message\", but is {shown(kind)}.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    fields.take("id"), fields.take("status")
    role, content = fields.take("role"), fields.take("content")
    fields.finish({})
    return {"role": role, "content": _content(content)}


def _content(value: object) -> object:
    """Parts by the names that they have elsewhere; what is wrong with them is found there."""
    if not isinstance(value, list):
        return value
    return [_part(part) if isinstance(part, dict) else part for part in value]


def _part(part: dict[str, object]) -> dict[str, object]:
    if part.get("type") not in _TEXT_PARTS:
        return part
    rest = {name: value for name, value in part.items() if name not in ("annotations", "logprobs")}
    return rest | {"type": "text"}


class ResponseAnswer:
    """The one answer of a request: whole, or as a stream of typed events. See answers.Answer."""

    def __init__(self, key: str, created_s: int, model: str, wanted: Sequence[Wanted]) -> None:
        self.id = f"resp-{key}"
        self._item_id = f"msg-{key}"
        self._created_s = created_s
        self._model = model
        self._wanted = wanted[0]
        self._sequence = 0
        self._text = ""
        self._is_open = False
        self._before = b""
        self.choices = [self]

    def delta(self, text: str, told: Sequence[TokenLogprob] = ()) -> bytes:
        """A piece of the text; before the first, what opens the answer."""
        self._text += text
        piece = {"item_id": self._item_id, "output_index": 0, "content_index": 0, "delta": text}
        return self._open() + self._event("response.output_text.delta", piece | {"logprobs": []})

    def finish(self, completion: Completion) -> bytes:
        """What closes the text and the answer."""
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        item = self._item(self._text, completion)
        done = {"text": self._text, "logprobs": []}
        body = self._body([item], completion)
        name = "response.completed" if body["status"] == "completed" else "response.incomplete"
        return b"".join(
            [
                self._open(),
                self._event("response.output_text.done", place | done),
                self._event("response.content_part.done", place | {"part": _part_of(self._text)}),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
                self._event(name, {"response": body}),
            ]
        )

    def end(self, completions: Sequence[Completion]) -> bytes:
        """Nothing: the last event has said it."""
        return b""

    def fail(self, error: RequestError) -> bytes:
        """The last event of a stream that fails."""
        body = self._body([], None) | {"status": "failed", "error": error_object(error)}
        return self._event("response.failed", {"response": body})

    def whole(self, results: Sequence[Result]) -> bytes:
        (result,) = results
        return _encode(self._body([self._item(result.text, result.completion)], result.completion))

    def _open(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        body = self._body([], None)
        return b"".join(
            [
                self._event("response.created", {"response": body}),
                self._event("response.in_progress", {"response": body}),
                self._event("response.output_item.added", {"output_index": 0, "item": self._item("", None)}),
                self._event("response.content_part.added", place | {"part": _part_of("")}),
            ]
        )

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._sequence} | fields)
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _item(self, text: str, completion: Completion | None) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": _status(completion),
            "content": [_part_of(text)] if completion else [],
        }

    def _body(self, output: list[dict[str, Any]], completion: Completion | None) -> dict[str, Any]:
        status, sampling = _status(completion), self._wanted.sampling
        why = None if status != "incomplete" or completion is None else _reason(completion.finish_reason)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_s,
            "status": status,
            "error": None,
            "incomplete_details": None if why is None else {"reason": why},
            "instructions": None,
            "max_output_tokens": sampling.max_tokens,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if completion is None else _usage(completion),
        }


def _status(completion: Completion | None) -> str:
    if completion is None:
        return "in_progress"
    return "completed" if completion.finish_reason is FinishReason.STOP else "incomplete"


def _reason(reason: FinishReason) -> str:
    return "max_output_tokens" if reason is FinishReason.LENGTH else finish_word(reason)


def _part_of(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(completion: Completion) -> dict[str, Any]:
    prompt, output = completion.num_prompt_tokens, completion.num_output_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": completion.num_cached_tokens},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }
