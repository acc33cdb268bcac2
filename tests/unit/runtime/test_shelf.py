"""Things are shared by as few as can be, and forgotten when nobody uses them."""

from pipeline.runtime.shelf import Shelf


def test_the_least_used_is_shared() -> None:
    shelf, first, second = Shelf(), [1], [2]
    assert shelf.share(list) is None
    shelf.keep(first)
    shelf.keep(second)
    assert shelf.share(dict) is None
    assert shelf.share(list) is first and shelf.share(list) is second
    shelf.leave(second)
    assert shelf.share(list) is second


def test_what_nobody_uses_is_forgotten() -> None:
    shelf, thing = Shelf(), [1]
    shelf.keep(thing)
    assert shelf.share(list) is thing
    shelf.leave(thing)
    assert shelf.share(list) is thing
    shelf.leave(thing)
    shelf.leave(thing)
    shelf.leave(None)
    assert shelf.share(list) is None
