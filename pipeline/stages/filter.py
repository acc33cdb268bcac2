"""Filter: TextBatch -> TextBatch, where config.toml has [stages.filter]: rules for what may be said.

Sits between detokenize and stream, so a rule sees text as a reader would, whatever the tokens, and whether
the answer is streamed or not.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from pipeline.core.content_filter import ContentFilter, Rule, Rules
from pipeline.core.text_state import FilteredText, FilterState
from pipeline.errors import ConfigError
from pipeline.messages import Cancel, FinishReason, SpelledLogprobs, Started, TextBatch
from pipeline.runtime.equivalence import BY_REQUEST
from pipeline.runtime.stage import Stage, StageContext

FILTERED = FinishReason.FILTERED.value
MAX_MEMORY = 64 << 20
"""Of a compiled expression and its automaton, bytes."""
Text = Annotated[str, msgspec.Meta(min_length=1)]


class FilterRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of rules. Has `terms` or `pattern`, not both."""

    terms: tuple[Text, ...] = ()
    """Words or phrases, each as it stands."""
    pattern: Text | None = None
    """A regular expression (RE2's syntax; no look-around, no back references)."""
    action: Literal["redact", "stop"] = "redact"
    """stop: the answer ends before the match, with the finish reason content_filter."""
    replacement: str = "[removed]"
    """What stands in its place, if redacted."""
    ignore_case: bool = True
    whole_words: bool = False
    """Terms only: not inside of longer words."""
    tenants: tuple[str, ...] = ()
    """Names of keys whose requests it is for; empty: everybody's."""


class FilterOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    clean: bool = True
    """Leave out characters that a reader does not see: controls, zero width, direction overrides."""
    rules: tuple[FilterRule, ...] = ()
    """Where two match at the same place, the first wins."""


class _Live(NamedTuple):
    tenant: str
    content: ContentFilter


class Filter(Stage[TextBatch, FilterOptions]):
    """Owns the held-back text of every live request.

    One that takes over with other rules judges by them what is held back and what comes; a match that had
    begun by the old ones is one only if the new ones say so.

    Logprobs would tell the tokens of what was removed, so a request with rules gets none.
    """

    Options = FilterOptions
    takes = (TextBatch,)
    gives = (TextBatch, Cancel)
    State = FilterState
    is_revocable = True
    equivalence = BY_REQUEST

    def __init__(self, ctx: StageContext, options: FilterOptions) -> None:
        super().__init__(ctx, options)
        self._by_tenant = _rules_by_tenant(options.rules)
        self._live: dict[int, _Live] = {}
        self._stopped: set[int] = set()
        """Ended here; their terminal row from the scheduler is still to come, and goes no further."""

    @property
    def num_live(self) -> int:
        """Requests with state here; 0 when idle."""
        return len(self._live) + len(self._stopped)

    def export_state(self) -> FilterState:
        texts = (
            FilteredText(request_id, live.tenant, live.content.before, live.content.held)
            for request_id, live in self._live.items()
        )
        return FilterState(tuple(texts), tuple(self._stopped))

    def import_state(self, state: FilterState) -> None:
        self._live = {text.request_id: self._taken_up(text) for text in state.texts}
        self._stopped = set(state.stopped)

    async def handle(self, batch: Sequence[TextBatch]) -> None:
        texts = self.ctx.outlet(TextBatch)
        for step in batch:
            for started in step.started:
                self._begin(started)
            if self._live or self._stopped:
                step = self._filtered(step)
            await texts.send(step)

    def _begin(self, started: Started) -> None:
        self._live[started.request_id] = self._taken_up(FilteredText(started.request_id, started.tenant))

    def _taken_up(self, text: FilteredText) -> _Live:
        rules = self._by_tenant.get(text.tenant, self._by_tenant[""])
        content = ContentFilter(rules, cleans=self.options.clean, before=text.before, held=text.held)
        return _Live(text.tenant, content)

    def _filtered(self, step: TextBatch) -> TextBatch:
        logprobs = self._left_of(step.logprobs)
        request_ids: list[int] = []
        texts: list[str] = []
        num_tokens: list[int] = []
        finish_reasons: list[int] = []
        for request_id, text, count, finish in zip(
            step.request_ids, step.texts, step.num_tokens, step.finish_reasons, strict=True
        ):
            if request_id in self._stopped:
                if finish:
                    self._stopped.discard(request_id)
                continue
            text, finish = self._pass(request_id, text, finish)
            request_ids.append(request_id)
            texts.append(text)
            num_tokens.append(count)
            finish_reasons.append(finish)
        return replace(
            step,
            request_ids=request_ids,
            texts=texts,
            num_tokens=num_tokens,
            finish_reasons=finish_reasons,
            logprobs=logprobs,
        )

    def _pass(self, request_id: int, text: str, finish: int) -> tuple[str, int]:
        """A row's text and ending, as they leave."""
        live = self._live.get(request_id)
        if live is None:
            return text, finish
        content = live.content
        text = content.push(text)
        if finish:
            text += content.flush()
            del self._live[request_id]
            return text, FILTERED if content.stopped_by else finish
        if content.stopped_by is None:
            return text, finish
        del self._live[request_id]
        self._stopped.add(request_id)
        self.ctx.outlet(Cancel).post(Cancel(request_id, FinishReason.CANCELLED))
        return text, FILTERED

    def _left_of(self, logprobs: SpelledLogprobs | None) -> SpelledLogprobs | None:
        """Without those of requests that have rules."""
        if logprobs is None:
            return None
        kept = [
            (request_id, entry)
            for request_id, entry in zip(logprobs.request_ids, logprobs.entries, strict=True)
            if not self._has_rules(request_id)
        ]
        return SpelledLogprobs([row[0] for row in kept], [row[1] for row in kept])

    def _has_rules(self, request_id: int) -> bool:
        live = self._live.get(request_id)
        return request_id in self._stopped or (live is not None and live.content.has_rules)


def _rules_by_tenant(rules: Sequence[FilterRule]) -> dict[str, Rules | None]:
    """For each tenant that a rule names, and for "" all others. Raises ConfigError."""
    tenants = {"", *(tenant for rule in rules for tenant in rule.tenants)}
    chosen = {
        tenant: [rule for rule in rules if not rule.tenants or tenant in rule.tenants] for tenant in tenants
    }
    return {tenant: compiled(each) if each else None for tenant, each in chosen.items()}


def compiled(rules: Sequence[FilterRule]) -> Rules:
    """As they are matched. Raises ConfigError that says what is wrong with one."""
    try:
        import re2
    except ImportError as error:
        raise ConfigError(
            f"stages.filter.options.rules: need RE2 ({error}); install it with: "
            "pip install 'stageline[filter]'"
        ) from error

    def compile_pattern(pattern: str) -> Any:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_MEMORY
        try:
            return re2.compile(pattern, options)
        except re2.error as error:
            raise ConfigError(f"stages.filter.options.rules: RE2 says: {error}") from error

    return Rules([_rule(rule) for rule in rules], compile_pattern)


def _rule(rule: FilterRule) -> Rule:
    if bool(rule.terms) == bool(rule.pattern):
        raise ConfigError("stages.filter.options.rules: each needs either `terms` or `pattern`")
    text = rule.pattern or "|".join(map(re.escape, rule.terms))
    pattern = rf"\b(?:{text})\b" if rule.terms and rule.whole_words else text
    return Rule(pattern, rule.action, rule.replacement, rule.ignore_case)
