"""A limit on how often something may be done: a bucket that fills at a constant rate."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBucket:
    """Lets `burst` takes through at once and `rate` a second over time."""

    rate: float
    burst: float
    _left: float = field(init=False)
    _filled: float | None = field(init=False, default=None)  # when _left was right, in seconds

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, now: float) -> float:
        """Take one and return 0, or return the seconds after which there will be one again.

        Args:
            now: seconds of a clock that never goes back.

        """
        if self._filled is not None:
            self._left = min(self.burst, self._left + (now - self._filled) * self.rate)
        self._filled = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self.rate
