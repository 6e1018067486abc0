from __future__ import annotations

from typing import Any

import pytest

from service.pages.script_text import changed, diff, line_of

_SHELL = "srun python pretrain_gpt.py --bf16 \\\n  --tensor-model-parallel-size 8 --swiglu\n"
_BESIDE = ("--tensor-model-parallel-size",)


def setting(name: str, value: Any) -> dict[str, Any]:
    return {"name": name, "from": None, "to": value}


@pytest.mark.parametrize(
    ("text", "name", "value", "expected"),
    [
        ("--tp-size 8 --x", "--tp-size", 2, "--tp-size 2 --x"),
        ("--tp-size=8 --x", "--tp-size", 2, "--tp-size=2 --x"),
        ("--tp_size 8 --x", "--tp-size", 2, "--tp_size 2 --x"),
        ('--tp-size "${TP}" --x', "--tp-size", 2, "--tp-size 2 --x"),
        ("--swiglu --x 1", "--swiglu", None, "--x 1"),
        ("--swiglu --x 1", "--swiglu", True, "--swiglu --x 1"),
        ("--x 1 \\\n  --sp \\\n  --y", "--sp", False, "--x 1 \\\n  \\\n  --y"),
        ("[parallelism]\ntp_degree = 8\n", "parallelism.tp_degree", 2,
         "[parallelism]\ntp_degree = 2\n"),
        ("parallelism:\n  tp_degree: 8\n", "parallelism.tp_degree", 2,
         "parallelism:\n  tp_degree: 2\n"),
        ("model.tp=8 model.tp_x=8", "model.tp", 2, "model.tp=2 model.tp_x=8"),
        ("a=1 per_device=1", "per_device", 0.5, "a=1 per_device=0.5"),
    ],
)  # fmt: skip
def test_a_setting_is_rewritten_where_it_stands(
    text: str, name: str, value: Any, expected: str
) -> None:
    assert changed(text, [setting(name, value)], ()) == (expected, [])


def test_an_option_that_is_not_there_is_put_beside_the_others() -> None:
    after, left = changed(_SHELL, [setting("--sequence-parallel", True)], _BESIDE)
    assert "--sequence-parallel --tensor-model-parallel-size 8" in after
    assert not left


def test_what_has_no_place_in_the_text_is_said() -> None:
    asked = setting("model.tp", 2)
    assert changed(_SHELL, [asked], _BESIDE) == (_SHELL, [asked])


def test_a_name_that_is_a_part_of_another_is_not_taken_for_it() -> None:
    assert line_of("a\n--tensor-model-parallel-size-x 8", ["--tensor-model-parallel-size"]) is None
    assert line_of("a\n--x-tp 8\n--tp 8", ["--tp"]) == 3


def test_a_diff_has_the_lines_that_changed() -> None:
    lines = diff("a\nb\nc", "a\nB\nc")
    assert [line for line in lines if line[0] in ("added", "removed")] == [
        ("removed", "-b"),
        ("added", "+B"),
    ]
