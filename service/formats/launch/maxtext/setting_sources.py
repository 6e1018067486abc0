"""The settings that a launch of MaxText gives: by its YAML files, the file of its model, its
command line and its environment. Each of these goes before those that are named in front of it
(configs/pyconfig.py, _initialize_pydantic)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from models.errors import Invalid
from service.formats.launch.documents import read_document, read_yaml
from service.formats.launch.job import Changes
from service.formats.launch.maxtext.package import (
    default_file,
    model_file,
    package_file,
    rl_settings,
)
from service.formats.settings.field import shown
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop
from service.formats.shell.command import Command, split_command
from service.formats.shell.faults import PATH, require_arguments_defined, require_defined
from service.formats.shell.files import LaunchFiles

_PAIR = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.ASCII | re.DOTALL)
_DOCUMENT = re.compile(
    r"\A(?:[ \t]*(?:#[^\n]*)?\n|---[^\n]*\n)*+\s*(?:\{|[A-Za-z_]\w*\s*:(?:\s|$))"
)
_YAML = (".yml", ".yaml")
_COMPILER_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
_MOST_BASES = 8
"""Files that name one another as their base; MaxText's own are three deep."""


class SettingSources:
    """Reads what a text gives into `settings`; `of_model` are the settings of the model's own file
    that nothing else says."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.of_model: dict[str, Any] = {}
        self.ignored: list[str] = []
        self._of_files: set[str] = set()

    def read(self, text: str, changes: Changes, files: LaunchFiles) -> None:
        if _DOCUMENT.match(text):
            self._read_document(read_document(text), files)
        else:
            self._read_command(split_command(text, files))
        self._of_files -= changes.keys()
        self.settings.change(changes)
        self._leave_out_idle()
        self._read_model_file()

    # -- files

    def _read_file(self, path: str, files: LaunchFiles) -> None:
        known = package_file(path)
        if path not in files and known is not None:
            if known.is_moved:
                table = self.settings.table
                self.settings.warnings.append(
                    f"{path} is no file of {table.framework} {table.release}: {known.name} was"
                    " read, which has the same name"
                )
            self._take_of_file(known.settings)
        elif known is None or known.settings:
            self._read_document(read_document(files.text(path)), files)

    def _read_document(
        self, document: Mapping[str, Any], files: LaunchFiles, depth: int = 0
    ) -> None:
        base = document.get("base_config")
        if base is not None and depth < _MOST_BASES:
            self._read_base(str(base), files, depth)
        self._take_of_file(
            {name: value for name, value in document.items() if name != "base_config"}
        )

    def _read_base(self, base: str, files: LaunchFiles, depth: int) -> None:
        known = package_file(f"configs/{base}")
        if base in files:
            self._read_document(read_document(files.text(base)), files, depth + 1)
        elif known is not None:
            self._take_of_file(known.settings)
        else:
            reason = "the settings in this file are not known"
            self.settings.reserve_text(shown("base_config", base), reason, "send its text")

    def _take_of_file(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            self._take(name, value)
            self._of_files.add(name)

    def _read_model_file(self) -> None:
        """The file of a model goes before other files. What differs from it on the command line
        stops MaxText, unless that is asked for."""
        given = self.settings.given
        name = str(given.get("model_name", "default")).removesuffix("-Instruct")
        overrides = given.get("override_model_config") is True
        for setting, value in model_file(name).items():
            if setting not in given or given[setting] == self._checked(setting, value):
                continue
            if setting in self._of_files:
                written = self.settings.shown(setting)
                self.settings.warnings.append(
                    f"{written} is left out: MaxText's file of {name}, which says"
                    f" {shown(setting, value)}, goes before the configuration"
                )
                del given[setting]
            elif not overrides:
                self.settings.stops.append(_overriding(setting, given[setting], name, value))
        own = {key: self._checked(key, value) for key, value in model_file(name).items()}
        self.of_model = {key: value for key, value in own.items() if key not in given}

    def _checked(self, name: str, value: Any) -> Any:
        field = self.settings.table.field(name)
        return value if field is None else field.checked(value)

    # -- the command line

    def _read_command(self, command: Command) -> None:
        words = list(command.words)
        if command.program and command.program.endswith(_YAML):
            words.insert(0, command.program)
        paths = [word for word in words if _is_file(word)]
        self._read_others([word for word in words if not _is_file(word)])
        for path in paths:
            self._read_file(path, command.files)
        if not paths:
            self._take_of_file(default_file(command.program).settings)
        pairs = [match for word in words if (match := _PAIR.fullmatch(word))]
        self._read_pairs(command.program, [(match[1], match[2]) for match in pairs])
        self._read_environment(command.environment)
        for branch in command.in_branches:
            self.settings.note(Reservation.of_branch(branch))

    def _read_others(self, words: Sequence[str]) -> None:
        """Words that are neither key=value nor a file: settings to OmegaConf, which no release has.
        Without any key=value the text is of another program."""
        others = [word for word in words if not _PAIR.fullmatch(word)]
        for word in others:
            require_arguments_defined(word)
            if len(others) == len(words) or word.startswith("-"):
                raise Invalid(PATH, word, "is no key=value, nor a file of settings")
        for at, word in enumerate(words):
            is_value = at > 0 and words[at - 1].endswith(":")
            if word not in others or (is_value and words[at - 1] in others):
                continue
            name = word.removesuffix(":")
            value = words[at + 1] if word.endswith(":") and words[at + 1 : at + 2] else ""
            is_known = self.settings.table.field(name) is not None
            hint = f"did you mean {name}={value}?" if is_known else "leave it out"
            self.settings.stops.append(
                Stop(
                    setting=word,
                    value=value,
                    rule=f"is no key=value, and MaxText stops at it: {hint}",
                    source=self.settings.table.facts["parser"],
                    cure=name if is_known else "",
                    meant=name if is_known else "",
                    is_of_name=True,
                )
            )

    def _read_pairs(self, program: str | None, pairs: Iterable[tuple[str, str]]) -> None:
        own = (program or "").removesuffix(".py").replace("/", ".").rpartition(".")[2]
        of_program = self.settings.table.facts["programs"].get(own)
        if of_program is not None:
            self.settings.reserve_text(str(program), *of_program)
        for name, value in pairs:
            if own == "train_rl" and name in rl_settings():
                self.ignored.append(shown(name, value))
                continue
            self._take(name, self._typed(name, value))
            self._of_files.discard(name)

    def _typed(self, name: str, written: str) -> Any:
        """A value as OmegaConf reads it: text in YAML."""
        field = self.settings.table.field(name)
        if field is not None and field.kind not in ("any", "list", "lists"):
            return field.parse(written) if written or not field.is_optional else written
        if not self.settings.table.is_of_no_account(name):
            require_defined(name, written)
        if field is None:
            return written
        try:
            return read_yaml(written)
        except Invalid:
            return written

    def _take(self, name: str, value: Any) -> None:
        field = self.settings.table.field(name)
        if name == "base_config" and str(value).endswith("base.yml"):
            self.ignored.append(shown(name, value))
        elif name == "lora" and isinstance(value, Mapping):
            for inner, inner_value in value.items():
                self.settings.put(f"lora.{inner}", inner_value)
        elif field is None:
            self.settings.put(name, value)
        elif value == "" and field.is_optional:
            self.settings.put(name, None)
        else:
            self.settings.put(name, field.checked(value))

    def _leave_out_idle(self) -> None:
        """Leaves out what changes nothing beside the others: settings of adapters that are not
        switched on, who accumulates gradients of one micro-batch, and on TPUs logits of fp32
        inputs, which are multiplied in bf16 there unless matmul_precision says otherwise
        (jax.lax.Precision.DEFAULT)."""
        given = self.settings.given
        idle = []
        if given.get("lora.enable_lora") not in (True, "true", "True"):
            idle += [name for name in given if name.startswith("lora.")]
        if given.get("gradient_accumulation_steps", 1) == 1:
            idle += [name for name in given if name == "use_tunix_gradient_accumulation"]
        is_tpu = given.get("hardware", "tpu") == "tpu"
        if is_tpu and given.get("matmul_precision", "default") == "default":
            idle += [name for name in given if name == "logits_dot_in_fp32"]
        self.ignored += [shown(name, given.pop(name)) for name in idle]

    # -- the environment

    def _read_environment(self, environment: Mapping[str, str]) -> None:
        """Variables M_NAME are settings too (configs/pyconfig.py, yaml_key_to_env_key)."""
        for variable, value in environment.items():
            name = variable.removeprefix("M_").lower()
            if variable.startswith("M_") and name in self.settings.table.fields:
                self._take(name, self._typed(name, value))
                self._of_files.discard(name)
            elif variable in _COMPILER_FLAGS:
                self._read_compiler_flags(variable, value)

    def _read_compiler_flags(self, variable: str, value: str) -> None:
        """Flags of XLA. Those that tune kernels and schedules have no term; those that change what
        is computed, or keep collectives from overlapping, are not described."""
        flags: Mapping[str, tuple[str, str]] = self.settings.table.facts["xla_flags"]
        for word in value.split():
            flag = word.lstrip("-")
            pattern = next((known for known in flags if fnmatchcase(flag, known)), None)
            if pattern is None:
                self.ignored.append(shown(variable, word))
            else:
                self.settings.reserve_text(shown(variable, word), *flags[pattern])


def _is_file(word: str) -> bool:
    return word.endswith(_YAML) and not _PAIR.fullmatch(word)


def _overriding(setting: str, said: Any, model: str, value: Any) -> Stop:
    rule = (
        f"differs from {value} in MaxText's file of {model}, at which MaxText stops: leave it out,"
        " or set override_model_config=true"
    )
    source = "maxtext 0.2.5: configs/pyconfig.py, validate_no_keys_overridden_twice"
    cure = "override_model_config=true"
    return Stop(setting=setting, value=said, rule=rule, source=source, cure=cure)
