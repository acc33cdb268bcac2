"""Words that mark what a client sends and gets, requests that hold them, and where they are looked for."""

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

from pipeline.core.keys import fingerprint
from tests.e2e.saying import SayingRunner

SECRETS = {
    name: f"zq{name}wolframite"
    for name in (
        "prompt",
        "output",
        "key",
        "wrongkey",
        "salt",
        "user",
        "tool",
        "stop",
        "path",
        "frame",
        "header",
        "garbage",
        "grammar",
    )
}
"""Each is found although it is cut after 40 characters."""
MAX_ERROR_CHARS = 1200
KEY = SECRETS["key"] * 3
POOR = SECRETS["key"] + "-poor"
AUTH = {"Authorization": f"Bearer {KEY}"}
TEXT = f"{SECRETS['prompt']}, and then "
OUT = f"{SECRETS['output']} was said. "
ASK: dict[str, Any] = {
    "prompt": TEXT,
    "seed": 1,
    "max_tokens": 60,
    "user": SECRETS["user"],
    "cache_salt": SECRETS["salt"],
    "stop": [SECRETS["stop"]],
}
CHAT: dict[str, Any] = {k: v for k, v in ASK.items() if k != "prompt"} | {
    "messages": [
        {"role": "system", "content": TEXT},
        {"role": "user", "content": [{"type": "text", "text": TEXT}]},
    ]
}
FIELDS = (
    "model", "n", "best_of", "echo", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias", "allowed_token_ids", "bad_words", "seed", "stop", "stop_token_ids",
    "include_stop_str_in_output", "min_tokens", "ignore_eos", "skip_special_tokens",
    "truncate_prompt_tokens", "logprobs", "top_logprobs", "stream", "stream_options", "timings",
    "priority", "ttft_target_ms", "tpot_target_ms", "patience_ms", "user", "cache_salt", "cache_pin",
    "kv_eviction", "kv_budget", "kv_sinks", "suffix", "use_beam_search", "prompt_logprobs",
    "separate_reasoning", "function_call", "unheard_of",
)  # fmt: skip
PROMPTS: list[Any] = [
    "",
    7,
    {SECRETS["prompt"]: 1},
    [1, SECRETS["prompt"]],
    [SECRETS["prompt"], 1],
    [SECRETS["prompt"], ""],
    [[1, SECRETS["prompt"]]],
    [SECRETS["prompt"]] * 65,
    SECRETS["prompt"] * 1000,
]
MESSAGES: list[Any] = [
    [],
    SECRETS["prompt"],
    [SECRETS["prompt"]],
    [{"role": "user"}],
    [{"role": "user", "content": {SECRETS["prompt"]: 1}}],
    [{"role": "user", "content": [SECRETS["prompt"]]}],
    [{"role": "user", "content": [{"type": "text", "text": [SECRETS["prompt"]]}]}],
    [{"role": "user", "content": [{"type": "text", "text": SECRETS["prompt"], "more": SECRETS["prompt"]}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRETS["prompt"]}}]}],
    [{"role": "user", "content": SECRETS["prompt"], "tool_calls": [SECRETS["prompt"]]}],
    [{"role": "user", "content": SECRETS["prompt"] * 1000}],
]
TOOLS: list[dict[str, Any]] = [
    {
        "tools": [
            {"type": "function", "function": {"name": SECRETS["tool"], "parameters": {SECRETS["tool"]: 1}}}
        ]
    },
    {"tools": [{"type": "function", "function": {"name": "a", "description": SECRETS["tool"], "x": 1}}]},
    {"tool_choice": {"function": {"name": SECRETS["tool"]}}},
    *(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
        for schema in (
            {SECRETS["grammar"]: 1},
            {"type": "object", "properties": {SECRETS["grammar"]: {"type": "nothing"}}},
            {"$ref": f"#/{SECRETS['grammar']}"},
            {"enum": [SECRETS["grammar"]], "minLength": -1},
            {"type": "string", "pattern": f"({SECRETS['grammar']}"},
        )
    ),
    *(
        {"structured_outputs": {kind: value}}
        for kind, value in (
            ("regex", f"({SECRETS['grammar']}"),
            ("grammar", f"start: {SECRETS['grammar']}"),
            ("choice", [SECRETS["grammar"], 1]),
            ("json", f'{{"{SECRETS["grammar"]}": '),
            ("json", f'"{SECRETS["grammar"]}"'),
        )
    ),
]
INPUTS: list[Any] = [
    [SECRETS["prompt"]],
    {SECRETS["prompt"]: 1},
    [{"role": "user", "content": [SECRETS["prompt"]]}],
    [{"role": "user", "content": [{"type": "input_image", "image_url": SECRETS["prompt"]}]}],
    [{"type": "function_call_output", "call_id": "a", "output": SECRETS["prompt"]}],
    SECRETS["prompt"] * 1000,
]


def toml(folder: Path) -> str:
    keys = folder / "keys.toml"
    keys.write_text(
        f'[ann]\nsha256 = "{fingerprint(KEY)}"\n'
        f'[poor]\nsha256 = "{fingerprint(POOR)}"\nrequests_per_min = 1\nmax_concurrent = 1\n'
    )
    return f"""
[server]
slow_request_ms = 0
slow_ttft_ms = 0
[stages.ingress.options]
keys_file = "{keys}"
access_log = true
max_live_requests = 8
max_body_bytes = 65536
max_frame_bytes = 65536
body_timeout_s = 0.3
keepalive_s = 1
write_timeout_s = 0.3
cors_origins = ["https://ours.example"]
[stages.tokenize.options]
max_prompt_bytes = 10000
[stages.stream.options]
flush_tokens = 1
client_buffer_bytes = 4096
slow_client_s = 0.3
[stages.filter.options]
rules = [{{ terms = ["{SECRETS["output"]} that is not"], action = "stop" }}]
"""


class Seen:
    """All that the server let out, but answers."""

    def __init__(self, log: io.StringIO) -> None:
        self.log = log
        self.errors: list[str] = []
        """Bodies of those that are no answers."""
        self.pages: dict[str, str] = {}

    def check(self, *expected: str) -> None:
        """No mark is anywhere, though much was said, of each of `expected` among it."""
        log = self.log.getvalue()
        for place, text in {"the log": log, **self.pages, "an error": "\n".join(self.errors)}.items():
            assert len(text) > 20, place
            for name, secret in SECRETS.items():
                if (place, name) == ("an error", "grammar"):
                    continue  # what is wrong with a schema is said to whoever sent it, in a few of its words
                at = text.find(secret)
                assert at < 0, f"{name} is in {place}: {text[max(0, at - 300) : at + 100]}"
        assert all(len(error) < MAX_ERROR_CHARS for error in self.errors)
        assert [each for each in expected if each not in log] == []


class Says(SayingRunner):
    """The marked words by seed; whatever seed it does not know gets the first of them."""

    def __init__(self) -> None:
        filtered = f"{OUT} {SECRETS['output']} that is not said."
        super().__init__({1: OUT * 2, 2: filtered, 3: OUT * 4000})
        self._texts = defaultdict(lambda: (OUT * 2).encode(), self._texts)
