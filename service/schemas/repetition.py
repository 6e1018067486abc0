"""Repetitions within a sequence."""

from __future__ import annotations

from collections.abc import Sequence


def repetitions(sequence: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Returns the sequence as (times, part), one after the other.

    From the left, each part is the one whose repetition covers most, and the shortest of those that
    cover as much. What does not repeat is one part, once.
    """
    items = list(sequence)
    runs: list[tuple[int, list[int]]] = []
    start = 0
    while start < len(items):
        times, length = _longest_from(items, start)
        part = items[start : start + length]
        if times == 1 and runs and runs[-1][0] == 1:
            runs[-1][1].extend(part)
        else:
            runs.append((times, part))
        start += times * length
    return runs


def _longest_from(items: list[int], start: int) -> tuple[int, int]:
    """Returns, of all parts that repeat from `start` on, the one that covers most items: how often
    it repeats, and its length."""
    best = (1, 1)
    for length in range(1, (len(items) - start) // 2 + 1):
        if items[start + length] != items[start]:
            continue
        part = items[start : start + length]
        times = 1
        while items[start + times * length : start + (times + 1) * length] == part:
            times += 1
        if times > 1 and times * length > best[0] * best[1]:
            best = (times, length)
    return best
