"""ArrivedIds: which request ids the scheduler has seen, in memory bounded by the disorder.

The door numbers requests 0, 1, 2, ... without holes and each reaches the scheduler once, but a pool of
tokenizers lets a short prompt overtake a long one. A cancel for an id that has not arrived must be
remembered; one for an id that has come and gone must not.
"""


class ArrivedIds:
    def __init__(self) -> None:
        self._below = 0
        self._beyond: set[int] = set()

    def add(self, request_id: int) -> None:
        self._beyond.add(request_id)
        while self._below in self._beyond:
            self._beyond.remove(self._below)
            self._below += 1

    def __contains__(self, request_id: int) -> bool:
        return request_id < self._below or request_id in self._beyond
