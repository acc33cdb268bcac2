import pytest

from pipeline.core.stops import LateStopMatcher, StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What each push shows, and what the flush does if no stop string was found."""
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.is_stopped:
            return shown, True
    return [*shown, matcher.flush()], False


def test_a_stop_string_over_many_pieces_is_never_shown() -> None:  # trap 6
    assert run(["DEFGHIJ"], ["DEF", "G", "HI", "J"]) == (["", "", "", ""], True)


def test_a_stop_string_in_the_middle_of_a_piece() -> None:  # trap 7
    assert run(["\n\nUser:"], ["ab\n\nUser: x"]) == (["ab"], True)


def test_the_match_runs_over_the_decoded_text() -> None:  # trap 5
    assert run(["atoms are"], ["All", " atoms", " are", " small"]) == (["All", " ", ""], True)


def test_held_text_comes_out_at_the_end() -> None:  # trap 9
    assert run(["<|eot|>assistant", "as you"], ["ple", "as"]) == (["ple", "", "as"], False)


def test_only_the_longest_beginning_is_held() -> None:
    matcher = StopMatcher(["abab!"])
    assert matcher.push("xabab") == "x"
    assert matcher.push("ab") == "ab"
    assert matcher.push("c") == "ababc"
    assert matcher.flush() == ""


def test_text_that_begins_no_stop_string_is_not_held() -> None:
    assert run(["###"], ["a", "b#c", "d"]) == (["a", "b#c", "d", ""], False)


@pytest.mark.parametrize("pieces", [["abcdef"], ["abcd", "ef"], list("abcdef")])
def test_the_stop_string_complete_first_wins_however_the_text_is_cut(pieces: list[str]) -> None:
    shown, is_stopped = run(["abcdef", "cd"], pieces)
    assert ("".join(shown), is_stopped) == ("ab", True)


@pytest.mark.parametrize("pieces", [["xabc"], list("xabc")])
def test_of_those_complete_at_once_the_one_that_begins_first_wins(pieces: list[str]) -> None:
    shown, is_stopped = run(["bc", "abc"], pieces)
    assert ("".join(shown), is_stopped) == ("x", True)


@pytest.mark.parametrize("stops", [[], [""], ["a", ""]])
def test_an_empty_stop_string_is_no_stop_string(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(stops)


def test_the_stop_string_is_shown_where_that_was_asked() -> None:
    matcher = StopMatcher(["END"], includes_stop=True)
    assert [matcher.push(piece) for piece in ("a", "bE", "NDx")] == ["a", "b", "END"]
    assert matcher.is_stopped and matcher.flush() == ""


def test_the_first_tokens_are_not_looked_at() -> None:  # trap 26
    matcher = LateStopMatcher(["ab"], 2)
    assert [matcher.push(piece) for piece in ("ab", "a", "b", "xab")] == ["ab", "a", "b", "x"]
    assert matcher.is_stopped
