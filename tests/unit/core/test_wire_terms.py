"""What a request may ask of the scheduler, and whose it is."""

import json
from typing import Any

import pytest

from pipeline.core.wire import Limits, Wanted, parse_chat, parse_completion, tenant_of_key, wanted_of
from pipeline.errors import RequestError
from pipeline.messages import Terms

LIMITS = Limits(model="m", max_model_len=2048, vocab_size=1000)


def completion(**fields: Any) -> Wanted:
    return parse_completion(json.dumps({"prompt": "Hi", **fields}).encode(), LIMITS, 0)[0]


def test_a_request_that_asks_for_nothing_gets_the_defaults() -> None:
    assert completion().terms == Terms()
    assert completion(priority=None, patience_ms=None, user=None).terms == Terms()


def test_all_doors_take_the_same_terms() -> None:
    asked = {
        "priority": -3,
        "ttft_target_ms": 250,
        "tpot_target_ms": 40.5,
        "patience_ms": 2000,
        "cache_salt": "s",
        "cache_pin": True,
    }
    expected = Terms("", -3, 250.0, 40.5, patience_ms=2000.0, cache_salt="s", cache_pin=True)
    messages = [{"role": "user", "content": "Hi"}]
    assert completion(**asked).terms == expected
    assert parse_chat(json.dumps({"messages": messages, **asked}).encode(), LIMITS, 0)[0].terms == expected
    assert wanted_of({"prompt": "Hi", **asked}, LIMITS, 0).terms == expected


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("priority", 1001, "an integer from -1000 to 1000, but is 1001"),
        ("priority", -1001, "an integer from -1000 to 1000"),
        ("priority", 1.5, "an integer"),
        ("priority", True, "but is true"),
        ("ttft_target_ms", 0, "a number above 0 and up to 600000, but is 0"),
        ("ttft_target_ms", -1, "a number above 0"),
        ("tpot_target_ms", 600_001, "up to 600000, but is 600001"),
        ("tpot_target_ms", "40", "a number above 0"),
        ("patience_ms", 0, "a number from 100 to 600000"),
        ("patience_ms", [1], "a number from 100"),
        ("patience_ms", False, "but is false"),
        ("user", "x" * 513, "at most 512 characters, but has 513"),
        ("user", 5, "a string"),
        ("cache_salt", "x" * 257, "at most 256 characters, but has 257"),
        ("cache_salt", ["s"], "a string"),
        ("cache_pin", "yes", "true or false"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(field: str, value: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        completion(**{field: value})
    assert (refused.value.status, refused.value.param) == (400, field)


def test_infinity_never_comes_in() -> None:
    with pytest.raises(RequestError, match="Invalid JSON"):
        parse_completion(b'{"prompt": "Hi", "patience_ms": Infinity}', LIMITS, 0)
    with pytest.raises(RequestError, match=r"patience_ms|Invalid JSON"):
        parse_completion(b'{"prompt": "Hi", "patience_ms": 1e999}', LIMITS, 0)


def test_the_key_comes_before_the_user() -> None:
    by_user = completion(user="ann").terms.tenant
    by_key = tenant_of_key("Bearer s3cret")
    assert by_user
    assert completion(user="ann").under(by_key).terms.tenant == by_key
    assert completion(user="ann").under("").terms.tenant == by_user
    assert completion(user="ann", priority=4).under(by_key).terms.priority == 4


def test_a_tenant_is_a_digest_of_one_length() -> None:
    tenants = [tenant_of_key("Bearer s3cret"), completion(user="s3cret").terms.tenant]
    assert "s3cret" not in "".join(tenants)
    assert tenants[0] != tenants[1]
    assert [len(tenant) for tenant in tenants] == [20, 21]
    assert tenant_of_key("bearer  s3cret ") == tenants[0]


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "s3cret"])
def test_other_headers_name_nobody(header: str | None) -> None:
    assert tenant_of_key(header) == ""


def test_bytes_that_are_no_text_still_make_a_tenant() -> None:
    assert tenant_of_key("Bearer \udcff") != tenant_of_key("Bearer \udcfe")
