"""How many launches are read as people publish them.

    python -m tests.benchmarks.typed_files --axolotl DIR --llama-factory DIR [--maxtext DIR]
        [--seed N] [--each N]

draws files that train from the source distributions of axolotl and LLaMA-Factory, and scripts from
MaxText's wheel, reads each beside the files that it names, and prints a line for each: read in
full, reserved with the settings that were not understood, or refused with the reason.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from models.errors import Invalid
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import LaunchReading
from service.formats.launch.trainer import reader as trainer_reader
from service.formats.shell.files import LaunchFiles

_SEED = 62
_EACH = 10
_TRAINER = re.compile(r"maxtext[./]trainers[./]|train_sft_omni")
_MOST_SHOWN = 3  # reasons of a file that is not read in full
_TRAINING_KEYS = {
    "axolotl": ({"base_model", "micro_batch_size"},),
    "llama-factory": ({"finetuning_type", "do_train"}, {"model", "train_dataset"}),
}
"""Keys by which a file of a tool is known to train."""


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of a source distribution, by the ends of their names."""

    folder: Path

    def find(self, name: str) -> str | None:
        own = Path(name).name
        for path in (self.folder / name, *sorted(self.folder.rglob(own))):
            if path.is_file() and path.name == own:
                return path.read_text()
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for tool in ("axolotl", "llama-factory", "maxtext"):
        parser.add_argument(f"--{tool}", type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=_SEED)
    parser.add_argument("--each", type=int, default=_EACH, help="files drawn of each tool")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for tool in ("axolotl", "llama_factory", "maxtext"):
        folder: Path | None = getattr(options, tool)
        if folder is not None:
            for path in _drawn(tool.replace("_", "-"), folder, options.seed, options.each):
                outcome, reasons = _read(tool, path, folder)
                counts[outcome] += 1
                print(f"{outcome:9} {path.relative_to(folder)}  {'; '.join(reasons)}".rstrip())
    print(f"seed {options.seed}:", ", ".join(f"{count} {name}" for name, count in counts.items()))


def _drawn(tool: str, folder: Path, seed: int, each: int) -> list[Path]:
    """Files that train, drawn by a seed."""
    if tool == "maxtext":
        found = [path for path in folder.rglob("*.sh") if _starts_trainer(path)]
    else:
        found = [path for path in (folder / "examples").rglob("*.y*ml") if _trains(tool, path)]
    return sorted(random.Random(seed).sample(sorted(found), min(each, len(found))))


def _starts_trainer(path: Path) -> bool:
    """Whether a script starts a program of MaxText that trains, itself or by one beside it."""
    text = path.read_text()
    beside = [text for name, text in _scripts_beside(path).items() if name in path.read_text()]
    return any(_TRAINER.search(each) for each in (text, *beside))


def _scripts_beside(path: Path) -> dict[str, str]:
    others = (each for each in path.parent.glob("*.sh") if each != path)
    return {each.name: each.read_text() for each in others}


def _trains(tool: str, path: Path) -> bool:
    """Whether a file starts a training that its tool does not refuse."""
    try:
        document: Any = yaml.safe_load(path.read_text())
    except yaml.YAMLError:
        return False
    if not isinstance(document, Mapping) or document.get("fsdp") and tool == "axolotl":
        return False  # axolotl 0.20 and later refuse the list `fsdp`
    return any(keys <= document.keys() for keys in _TRAINING_KEYS[tool])


def _read(tool: str, path: Path, folder: Path) -> tuple[str, list[str]]:
    """What became of a file, and why."""
    text = path.read_text()
    try:
        if tool == "maxtext":
            beside = LaunchFiles(_scripts_beside(path))
            reading = FORMATS["maxtext"].read(text, None, files=beside)
        else:
            reading = trainer_reader.read(text, None, files=FolderFiles(folder))
    except Invalid as error:
        return "refused", [f"{error.value}: {error.rule}"]
    reasons = list(_reasons(reading))
    if reading.stops:
        return "stopped", reasons[:_MOST_SHOWN]
    return ("reserved" if reading.reservations else "read"), reasons[:_MOST_SHOWN]


def _reasons(reading: LaunchReading) -> Iterator[str]:
    yield from (f"{stop.setting}: {stop.rule}" for stop in reading.stops)
    yield from (one.text for one in reading.reservations)


if __name__ == "__main__":
    main()
