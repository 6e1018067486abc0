"""The YAML files of MaxText's own package, in the environment that has it.

`python -m tests.launchers.maxtext_configs` writes them into
`service/formats/launch/fields/maxtext_configs_0.2.5.json`, with the settings that only its
reinforcement learning has, and the file that each of its programs starts from. Settings that change
neither time nor memory are left out.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from service.formats.launch.maxtext.package import TABLE
from service.formats.launch.maxtext.writer import RELEASE
from service.formats.launch.maxtext.writer import TABLE as SETTINGS
from service.formats.settings.field_table import field_table
from tests.launchers.judging import PYTHON
from tests.paths import ROOT

FILE = ROOT / f"service/formats/launch/fields/{TABLE}.json"
_NOT_OWN = ("base_config", "logical_axis_rules")
"""What says the same as `base.yml`: in files of models that shard otherwise, `mesh_axes` and
`override_logical_axis_rules` stand beside the rules."""
_FOLDERS = ("models", "gpu", "tpu", "post_train")
"""Those of `configs/` whose files train; others serve models, or shard by rules of their own."""
_ASKED = """
import json
from maxtext.configs import pyconfig, types

def names(model):
    for name, field in model.model_fields.items():
        yield name
        if hasattr(field.annotation, "model_fields"):
            yield from names(field.annotation)
            yield from (f"{name}.{inner}" for inner in names(field.annotation))

own = sorted({*names(types.RLConfig)} - {*types.MaxTextConfig.model_fields})
programs = pyconfig._CONFIG_FILE_MAPPING
print(json.dumps({"own": own, "programs": programs, "folder": pyconfig.MAXTEXT_CONFIGS_DIR}))
"""


def configs() -> str:
    """What FILE should hold."""
    answer = json.loads(_output(_ASKED).splitlines()[-1])
    folder = Path(answer["folder"])
    paths = sorted(path for each in _FOLDERS for path in (folder / each).rglob("*.yml"))
    files = {str(path.relative_to(folder)): _settings(path, folder) for path in paths}
    files = {name: _that_count(settings) for name, settings in files.items() if settings}
    programs = {
        name.rpartition(".")[2]: file
        for name, file in answer["programs"].items()
        if ".trainers." in name and file != "base.yml"
    }
    parts = [
        ' "package": "maxtext"',
        f' "version": "{RELEASE}"',
        f' "source": "maxtext {RELEASE}: configs/*/*.yml, configs/pyconfig.py, configs/types.py"',
        f' "programs": {json.dumps(programs)}',
        f' "rl_settings": {json.dumps(answer["own"])}',
        f' "files": {_lines(files)}',
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _settings(path: Path, folder: Path) -> dict[str, Any]:
    """The settings of a file and of the one that it starts from; none of files that serve."""
    settings: dict[str, Any] = yaml.safe_load(path.read_text())
    base = settings.get("base_config", "base.yml")
    if base == "base.yml":
        return settings
    return {} if base.startswith("inference/") else {**_settings(folder / base, folder), **settings}


def _that_count(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that time, memory or what is legal may depend on. None is unknown: the framework
    takes its own files."""
    table = field_table(SETTINGS)
    counted = {}
    for name, value in settings.items():
        field = table.field(name)
        if field is not None and field.use != "no_account" and name not in _NOT_OWN:
            counted[name] = value
    return counted


def _lines(entries: dict[str, Any]) -> str:
    """A JSON object with an entry a line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
    return "{\n" + ",\n".join(lines) + "\n }"


def _output(program: str) -> str:
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        env={"JAX_PLATFORMS": "cpu"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return done.stdout


if __name__ == "__main__":
    FILE.write_text(configs())
