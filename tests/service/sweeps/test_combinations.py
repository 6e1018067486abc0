from __future__ import annotations

from itertools import product

from service.sweeps.combinations import combination, count, item_question

REQUEST = {
    "models": ["a", "b"],
    "clusters": [{"preset": "c"}, {"preset": "d"}, {"preset": "e"}],
    "workloads": [{"seq_len": 1}],
    "stacks": ["f", "g"],
    "constraints": [{}, {"pp": 1}],
    "profile": {"id": "default", "version": 3},
    "tolerance": 0.1,
    "time_limit_s": 5.0,
}
LISTS = ("models", "clusters", "workloads", "stacks", "constraints")
FIELDS = ("model", "cluster", "workload", "stack", "constraints")


def test_items_are_the_product_of_the_lists_in_order() -> None:
    expected = [*product(*(REQUEST[name] for name in LISTS))]
    asked = [item_question(REQUEST, position) for position in range(count(REQUEST))]
    assert [tuple(each[field] for field in FIELDS) for each in asked] == expected
    assert all(each["profile"] == REQUEST["profile"] for each in asked)
    assert all((each["tolerance"], each["time_limit_s"]) == (0.1, 5.0) for each in asked)


def test_a_cluster_with_a_stack_of_its_own_is_asked_with_that() -> None:
    own = {"preset": "tpu", "stack": "maxtext"}
    request = {**REQUEST, "clusters": [{"preset": "c"}, own], "stacks": ["f"]}
    asked = [item_question(request, position) for position in range(count(request))]
    assert {(each["cluster"]["preset"], each["stack"]) for each in asked} == {
        ("c", "f"),
        ("tpu", "maxtext"),
    }
    assert all("stack" not in each["cluster"] for each in asked)


def test_a_combination_says_which_of_each_list_it_is() -> None:
    indices = product(*(range(len(REQUEST[name])) for name in LISTS))
    for position, expected in enumerate(indices):
        assert tuple(combination(REQUEST, position).values()) == expected
