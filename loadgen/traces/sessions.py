"""Who follows whom, where rows name their session."""

import msgspec


class _Last(msgspec.Struct, frozen=True):
    number: int
    ended_s: float | None


class Sessions:
    """Links each row to the one before it in its session. Asked once for every row that is read, in order."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._last: dict[str, _Last] = {}

    def follow(
        self, session: str | None, at_s: float | None = None, took_s: float | None = None
    ) -> tuple[int | None, float | None]:
        """(`after`, `think_s`) of the next row, which arrived at `at_s` and was answered in `took_s`.

        Where a time is not recorded, the think time is None. A session of None has one row.
        """
        number, self._num_rows = self._num_rows, self._num_rows + 1
        if session is None:
            return None, None
        last = self._last.get(session)
        ended_s = None if at_s is None or took_s is None else at_s + took_s
        self._last[session] = _Last(number, ended_s)
        if last is None:
            return None, None
        if last.ended_s is None or at_s is None:
            return last.number, None
        return last.number, max(0.0, at_s - last.ended_s)
