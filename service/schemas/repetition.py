"""Finds the parts of a sequence that repeat, with which long lists of layers are written short."""

from __future__ import annotations

from collections.abc import Sequence


def repetitions(sequence: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Returns the sequence as repeated parts, each (times, part): [1, 2, 1, 2, 3] gives [(2, [1,
    2]), (1, [3])].

    From the left, each part is the one whose repetitions cover most items, and the shortest among
    equals. Items that do not repeat form one part with times = 1.
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
    """Returns how often a part repeats from `start` on, and its length, for the part whose
    repetitions cover most items. (1, 1) where nothing repeats."""
    best = (1, 1)
    for length in range(1, (len(items) - start) // 2 + 1):
        if items[start + length] != items[start]:  # a repetition begins with the same item
            continue
        part = items[start : start + length]
        times = 1
        while items[start + times * length : start + (times + 1) * length] == part:
            times += 1
        if times > 1 and times * length > best[0] * best[1]:
            best = (times, length)
    return best
