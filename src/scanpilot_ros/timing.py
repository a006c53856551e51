"""How punctual and how long control ticks are."""

from __future__ import annotations

from collections import deque


class TickTiming:
    """Lateness against a fixed schedule, and durations, of ticks that should come every period.

    Attributes:
        count: ticks so far.
        late_max: seconds that the latest tick of all came after its time.
        duration_max: seconds that the longest tick took.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._due: float | None = None
        self._durations: deque[float] = deque(maxlen=1000)
        self.count = 0
        self.late_max = 0.0
        self.duration_max = 0.0

    def begin(self, now: float) -> float:
        """A tick starts at ``now``, monotonic seconds; returns how late it is, seconds."""
        # A tick before its time means that the ones before were late: the schedule is the earlier one.
        due = now if self._due is None else min(now, self._due)
        late = now - due
        self.late_max = max(self.late_max, late)
        self.count += 1
        # After missing whole periods the timer goes on from now, and so does the schedule.
        self._due = (due if late < self._period else now) + self._period
        return late

    def end(self, begun: float, now: float) -> None:
        """The tick that started at ``begun`` is over."""
        self._durations.append(now - begun)
        self.duration_max = max(self.duration_max, now - begun)

    def duration(self, quantile: float) -> float:
        """Seconds that this share of the latest thousand ticks did not exceed."""
        if not self._durations:
            return 0.0
        ordered = sorted(self._durations)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
