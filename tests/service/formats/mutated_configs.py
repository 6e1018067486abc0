"""Configs of real models with keys left out or given odd values, and what must become of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from models.errors import Invalid
from models.spec.architecture import Architecture
from service.formats.huggingface import read


@st.composite
def mutated(
    draw: st.DrawFn,
    seeds: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    values: st.SearchStrategy[Any],
) -> dict[str, Any]:
    """One of the seeds, of which up to three keys, its own or of these, are gone or have another
    value, in it or in an object in it."""
    config: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(seeds))))
    for _ in range(draw(st.integers(1, 3))):
        inner = [value for value in config.values() if isinstance(value, dict)]
        target = draw(st.sampled_from([config, *inner]))
        key = draw(st.sampled_from(sorted(target) or keys) | st.sampled_from(keys))
        if draw(st.booleans()):
            target.pop(key, None)
        else:
            target[key] = draw(values)
    return config


def outcome(config: Mapping[str, object]) -> Architecture | Invalid:
    try:
        return read(config)
    except Invalid as error:
        return error


def reads_or_refuses(config: Mapping[str, object]) -> None:
    """A config is a model with parameters, or is refused with the field and in few words."""
    result = outcome(config)
    if isinstance(result, Invalid):
        assert result.field
        assert len(str(result)) < 3000
    else:
        assert 0 < result.parameters.active <= result.parameters.total
