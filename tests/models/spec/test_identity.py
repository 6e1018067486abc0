"""Caches by identity."""

from __future__ import annotations

from models.spec.identity import cached_by_identity


class Equal:
    """Equal to every other, and without a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def test_a_result_is_kept_for_an_object_and_equal_arguments() -> None:
    calls = []

    @cached_by_identity(8)
    def asked(value: Equal, name: str) -> object:
        calls.append((value, name))
        return object()

    one, other = Equal(), Equal()
    first = asked(one, "a")
    assert asked(one, "".join(["a"])) is first
    assert asked(one, "b") is not first
    assert asked(other, "a") is not first
    assert len(calls) == 3


def test_two_objects_may_be_told_by_identity() -> None:
    @cached_by_identity(8, objects=2)
    def pair(one: Equal, other: Equal) -> object:
        return object()

    a, b = Equal(), Equal()
    assert pair(a, b) is pair(a, b)
    assert pair(a, b) is not pair(b, a)


def test_no_more_results_are_kept_than_asked_and_none_is_of_a_dead_object() -> None:
    """An object that is forgotten may leave its id to another one."""

    @cached_by_identity(2)
    def number_of(value: list[int]) -> int:
        return value[0]

    for number in range(1000):
        assert number_of([number]) == number
