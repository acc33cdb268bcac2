import pytest

from pipeline.core.admission import fit
from pipeline.errors import RequestError


def refused(*args: int | None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        fit(*args)  # type: ignore[arg-type]
    assert caught.value.status == 400
    return caught.value


def test_prompt_and_output_may_fill_the_length_exactly() -> None:  # trap 17
    assert fit(8, 2040, 2048, 512) == 2040


def test_one_more_is_refused_with_the_numbers() -> None:  # trap 17
    error = refused(8, 2045, 2048, 512)
    assert all(number in error.message for number in ("2048", " 8 ", "2045", "2053"))
    assert (error.code, error.param) == ("context_length_exceeded", "max_tokens")


def test_an_empty_prompt_is_refused() -> None:  # trap 15
    assert refused(0, 10, 2048, 512).param == "prompt"


@pytest.mark.parametrize(("num_prompt_tokens", "expected"), [(8, 512), (2000, 48), (2047, 1)])
def test_the_default_is_cut_to_the_room_there_is(num_prompt_tokens: int, expected: int) -> None:
    assert fit(num_prompt_tokens, None, 2048, 512) == expected


@pytest.mark.parametrize("max_tokens", [None, 1])
def test_a_prompt_that_leaves_no_room_is_refused(max_tokens: int | None) -> None:
    error = refused(2048, max_tokens, 2048, 512)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert "2048" in error.message and "2049" in error.message


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_max_tokens_must_be_positive(max_tokens: int) -> None:
    assert refused(8, max_tokens, 2048, 512).param == "max_tokens"
