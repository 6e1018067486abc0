"""Models by the names that launches have for them."""

from __future__ import annotations

import pytest

from service.formats.launch.trainer.models import named_model


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("someone/unheard-of-7b-instruct", None),
    ],
)
def test_a_tuned_model_has_the_shape_of_the_one_it_is_of(name: str, known: str | None) -> None:
    found = named_model("model", name)
    assert found.id == known
    assert (found.problem is None) == (known is not None)
