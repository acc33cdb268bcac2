"""Prompts with images share KV only where the images are the same, and at the same places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.core.prefix import images_in
from pipeline.messages import DeviceReady, PromptImage, StepPlan
from tests.scheduler_world import World
from tests.unit.core.test_prefix_cache import BLOCK, DEVICE, OneKey, asking, world

IMAGE = 5
NUM_TOKENS = 6


def image(digest: str, start: int) -> PromptImage:
    return PromptImage(digest.encode() * 4, digest.encode() * 16, start, NUM_TOKENS)


def prompt(*parts: str | int) -> tuple[list[int], tuple[PromptImage, ...]]:
    """Images by their digests, and so many tokens of text."""
    token_ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, str):
            images.append(image(part, len(token_ids)))
            token_ids += [IMAGE] * NUM_TOKENS
        else:
            token_ids += range(10, 10 + part)
    return token_ids, tuple(images)


def ask(w: World, request_id: int, *parts: str | int) -> int:
    """Run it to its end; how many of its tokens were cached."""
    token_ids, images = prompt(*parts)
    w.add(replace(asking(request_id, token_ids), images=images))
    sequence = w.core._live[request_id]
    w.run()
    return sequence.num_cached_tokens


def test_the_same_image_is_shared_and_another_one_is_not() -> None:
    w = world()
    assert ask(w, 0, 2, "ab", 9) == 0
    assert ask(w, 1, 2, "ab", 9) == 16
    assert ask(w, 2, 2, "cd", 9) == 0, "the first block holds two of its tokens"
    assert ask(w, 3, 2, "cd", 9) == 16


def test_what_comes_before_an_image_is_shared_with_all() -> None:
    w = world()
    ask(w, 0, 8, "ab", 9)
    assert ask(w, 1, 8, "cd", 9) == 8
    token_ids, _ = prompt(8, "ab", 9)
    w.add(asking(2, token_ids))  # its client wrote the image token itself
    sequence = w.core._live[2]
    w.run()
    assert sequence.num_cached_tokens == 8


def test_the_last_of_several_counts() -> None:
    w = world()
    ask(w, 0, "ab", 2, "cd", 4)
    assert ask(w, 1, "ab", 2, "ef", 4) == 8
    assert ask(w, 2, "ef", 2, "cd", 4) == 0
    assert ask(w, 3, "ab", 2, "cd", 4) == 16


def test_a_collision_of_images_is_a_miss() -> None:
    w = world(hashing=OneKey)
    assert [ask(w, 0, "ab", 4), ask(w, 1, "cd", 4), ask(w, 2, "ab", 4)] == [0, 0, 4]


IMAGES = st.lists(
    st.builds(lambda digest, gap: (digest, gap), st.sampled_from(["ab", "cd", "ba"]), st.integers(0, 5)),
    max_size=4,
)


@given(one=IMAGES, other=IMAGES, start=st.integers(0, 40))
def test_a_block_is_told_alike_only_with_the_same_images_at_the_same_places(
    one: list[tuple[str, int]], other: list[tuple[str, int]], start: int
) -> None:
    def seen(parts: list[tuple[str, int]]) -> tuple[bytes, list[tuple[int, bytes]]]:
        _, images = prompt(*(each for digest, gap in parts for each in (gap, digest)))
        inside = [i for i in images if i.start < start + BLOCK and start < i.end]
        return images_in(images, start, start + BLOCK), [(i.start, i.digest) for i in inside]

    (first, first_inside), (second, second_inside) = seen(one), seen(other)
    assert (first == second) == (first_inside == second_inside)


def admitted_images(plans: list[StepPlan]) -> list[list[int]]:
    """Where the images start that are sent along, by admission."""
    return [[each.start for each in admitted.images] for plan in plans for admitted in plan.admitted]


def test_an_image_whose_tokens_are_cached_is_not_sent() -> None:
    w = world()
    for request_id in (0, 1):
        ask(w, request_id, "ab", 2, "cd", 5)
    ask(w, 2, "ab", 2, "ef", 5)
    assert admitted_images(w.plans) == [[0, 8], [], [8]]


@pytest.mark.parametrize("num_blocks", [9, 12])
def test_who_is_preempted_brings_its_images_again(num_blocks: int) -> None:
    device: DeviceReady = replace(DEVICE, num_blocks=num_blocks)
    w = world(device, max_preemptions=5)
    for request_id in range(3):
        token_ids, images = prompt(1, "ab" if request_id else "cd", 4)
        w.add(replace(asking(request_id, token_ids, max_tokens=9), images=images))
    w.run()
    sent = admitted_images(w.plans)
    assert w.core.num_preemptions and len(sent) == 3 + w.core.num_preemptions
    assert all(each in ([1], []) for each in sent) and not w.core._live


def test_a_device_that_was_lost_is_sent_them_again() -> None:
    w = world()
    token_ids, images = prompt(1, "ab", 4)
    w.add(replace(asking(0, token_ids, max_tokens=9), images=images))
    w.step()
    w.core.device_lost()
    w.core.device_ready(DEVICE)
    w.run()
    assert admitted_images(w.plans) == [[1], [1]]
