"""Waits for a condition by asking again."""

import time


def eventually(condition, seconds, what, every=0.02):
    """The first true value of `condition()`; fails after `seconds`, naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(every)
