"""What transformers makes of configs of Hugging Face, in the environment that has it.

`python -m tests.launchers.model_code` writes the defaults of its config classes into
`service/formats/huggingface/classes.json`, the parameters that models with these defaults have into
`tests/service/formats/class_defaults.json`, those of the configs in
`tests/service/formats/hybrids.json` beside them, and those of the encoders of images of the configs
in `tests/service/formats/vision_towers.json`.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service.formats.huggingface import FAMILIES
from service.formats.huggingface.classes import UNTIED
from tests.launchers.judging import PYTHON
from tests.paths import ROOT

_FORMATS = ROOT / "service/formats"
CLASSES = _FORMATS / "huggingface/classes.json"
COUNTS = ROOT / "tests/service/formats/class_defaults.json"
HYBRIDS = ROOT / "tests/service/formats/hybrids.json"
TOWERS = ROOT / "tests/service/formats/vision_towers.json"
_VISION = ("towers.py", "vision.py")
_NOT_READ = {
    "add_cross_attention",
    "is_encoder_decoder",
    "layer_types",
    "mlp_layer_types",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "rope_parameters",
    "use_bidirectional_attention",
}
"""Keys whose absence means the same in every family."""
_OF_ALL = {"head_dim": None, "num_key_value_heads": None, "tie_word_embeddings": False}
"""What these mean to a class that has no such field."""


def parameters(configs: Iterable[Mapping[str, Any]]) -> list[int | str]:
    """The parameters of the language model that each config describes, or why transformers does not
    build it."""
    found: list[int | str] = _asked(configs=list(configs))["parameters"]
    return found


def class_fields() -> dict[str, dict[str, Any]]:
    """The defaults of the fields that the config class of each family has."""
    fields: dict[str, dict[str, Any]] = _asked(families=sorted(FAMILIES))["defaults"]
    return fields


def classes() -> str:
    """What CLASSES should hold."""
    answer = _asked(families=sorted(FAMILIES))
    read = _keys_read() - _NOT_READ
    defaults = {}
    for family, fields in answer["defaults"].items():
        kept = {key: value for key, value in fields.items() if key in read}
        defaults[family] = dict(sorted({**_OF_ALL, **kept}.items()))
    towers = {
        outer: text
        for outer, text in sorted(answer["text_towers"].items())
        if text in FAMILIES or text in answer["text_towers"]
    }
    return (
        '{\n "source": "transformers 5.24.0: the defaults of its config classes",\n'
        f' "text_towers": {_lines(towers)},\n "defaults": {_lines(defaults)}\n}}\n'
    )


def counts() -> str:
    """What COUNTS should hold. Families of whose defaults transformers builds no model are left
    out."""
    families = sorted(json.loads(CLASSES.read_text())["defaults"])
    untied = {family: {"tie_word_embeddings": False} for family in UNTIED}
    found = parameters({"model_type": family, **untied.get(family, {})} for family in families)
    numbers = {
        family: count
        for family, count in zip(families, found, strict=True)
        if isinstance(count, int)
    }
    return json.dumps(numbers, indent=1) + "\n"


def hybrids() -> str:
    """What HYBRIDS should hold: its configs, with the parameters of the model code."""
    configs = _configs(HYBRIDS)
    return _counted(configs, parameters(configs))


def towers() -> str:
    """What TOWERS should hold: its configs, with the parameters beside the language model."""
    configs = _configs(TOWERS)
    return _counted(configs, _asked(vision_configs=configs)["towers"])


def _configs(file: Path) -> list[Mapping[str, Any]]:
    return [one["config"] for one in json.loads(file.read_text())]


def _counted(configs: Iterable[Mapping[str, Any]], numbers: Iterable[int | str]) -> str:
    entries = [
        json.dumps({"config": config, "parameters": count})
        for config, count in zip(configs, numbers, strict=True)
    ]
    return "[\n " + ",\n ".join(entries) + "\n]\n"


def _lines(entries: Mapping[str, Any]) -> str:
    """A JSON object with an entry a line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    return "{\n" + ",\n".join(lines) + "\n }"


def _keys_read() -> set[str]:
    """The names in the source of the readers of language models, and in the rows of families, among
    which are the keys that they read."""
    folder = _FORMATS / "huggingface"
    found = set(re.findall(r'"(\w+)"', (folder / "families.json").read_text()))
    for path in set(folder.glob("*.py")) - {folder / name for name in _VISION}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
    return found


def _asked(**question: Any) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        done = subprocess.run(
            [PYTHON, "-m", "judges.model_code", file],
            input=json.dumps({"configs": [], "families": [], "vision_configs": [], **question}),
            capture_output=True,
            text=True,
            cwd=ROOT / "tests/launchers",
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-4000:])
        answer: dict[str, Any] = json.loads(file.read_text())
        return answer


if __name__ == "__main__":
    CLASSES.write_text(classes())
    COUNTS.write_text(counts())
    HYBRIDS.write_text(hybrids())
    TOWERS.write_text(towers())
