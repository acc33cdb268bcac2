"""The calls in a chat's answer, in OpenAI's shape."""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from pipeline.core.tool_calls import Call, new_parser
from pipeline.core.wire.tools import Toolset

_encode = msgspec.json.Encoder().encode
Part = tuple[str, str]
"""Kind and text: "content", "reasoning", or "call", whose text is the call as a stream's delta has it."""


class CalledParts:
    """Takes calls out of the parts of one answer that are content.

    Args:
        key: of the answer and its choice: its calls have ids of their own.
    """

    def __init__(self, toolset: Toolset, key: bytes) -> None:
        self._parser = new_parser(toolset.syntax, toolset.names)
        self._is_parallel = toolset.is_parallel
        self._key = key
        self.calls: list[dict[str, object]] = []
        """As a whole answer's message has them."""

    def push(self, parts: Iterable[Part]) -> list[Part]:
        passed: list[Part] = []
        for kind, text in parts:
            passed += self._told(self._parser.push(text)) if kind == "content" else [(kind, text)]
        return passed

    def flush(self, parts: Iterable[Part]) -> list[Part]:
        return self.push(parts) + self._told(self._parser.flush())

    def _told(self, found: Iterable[str | Call]) -> list[Part]:
        told: list[Part] = []
        for each in found:
            if isinstance(each, str):
                told.append(("content", each))
            elif self._is_parallel or not self.calls:  # else it is dropped: one was asked for
                told.append(self._call(each))
        return told

    def _call(self, call: Call) -> Part:
        index = len(self.calls)
        name = blake2b(self._key + b"%d" % index, digest_size=12).hexdigest()
        function = {"name": call.name, "arguments": call.arguments}
        told: dict[str, object] = {"id": f"call_{name}", "type": "function", "function": function}
        self.calls.append(told)
        return "call", _encode({"index": index} | told).decode()
