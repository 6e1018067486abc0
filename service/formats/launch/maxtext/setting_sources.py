"""Reads the settings of a launch of MaxText from its YAML files, the file of its model, its
command line and its environment. Each of these overrides those that are named before it
(configs/pyconfig.py, _initialize_pydantic).

A *stop* is a setting with which MaxText refuses to start. A *reservation* is a remark that a
setting could matter and is not taken into account. An *idle* setting has no effect beside the
others.
"""

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
    module_name,
    package_file,
    rl_settings,
)
from service.formats.settings.field import shown
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop
from service.formats.shell.command import Command, split_command
from service.formats.shell.faults import invalid_launch, require_arguments_defined, require_defined
from service.formats.shell.files import LaunchFiles
from service.formats.shell.tpu_slices import Slices

_PAIR = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.ASCII | re.DOTALL)
_DOCUMENT = re.compile(
    r"\A(?:[ \t]*(?:#[^\n]*)?\n|---[^\n]*\n)*+\s*(?:\{|[A-Za-z_]\w*\s*:(?:\s|$))"
)
_YAML = (".yml", ".yaml")
_EARLIER_PROGRAM = re.compile(r"(?:^|[./])MaxText[./]")
"""A module or file of MaxText 0.1.0; the package of 0.2.5 is `maxtext`, in small letters."""
_MEMORY_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""The variables with which JAX is told how much of a GPU's memory it may allocate; the second is
the older name."""
_COMPILER_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
_MOST_BASES = 8
"""Files that name one another as their base; MaxText's own are three deep."""


class SettingSources:
    """Reads the settings of a text into `settings`. `of_model` has the settings that only the file
    of the model sets."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.of_model: dict[str, Any] = {}
        self.ignored: list[str] = []
        self.assumed: list[str] = []
        """Sentences about what is read as something else than it is."""
        self.memory_fraction: float | None = None
        """The part of a GPU's memory that JAX may allocate, where the environment says it."""
        self.slices: Slices | None = None
        """The slices of TPUs that the command asks for."""
        self._of_files: set[str] = set()
        """The names of settings that files set, and not the command line. The file of the model
        overrides them."""

    def read(self, text: str, changes: Changes, files: LaunchFiles) -> None:
        """Reads a YAML document or a command line, applies `changes`, drops settings without
        effect, and then reads the file of the model."""
        if _DOCUMENT.match(text):
            self._read_document(read_document(text), files)
        else:
            self._read_command(split_command(text, files))
        self._of_files -= changes.keys()  # a change counts as typed on the command line
        self.settings.change(changes)
        self._leave_out_idle()
        self._read_model_file()

    # -- files

    def _read_file(self, path: str, files: LaunchFiles) -> None:
        """Reads a file that was sent, or one that ships with MaxText. Warns where it was found
        by its name alone, in another folder."""
        in_package = package_file(path)
        if path not in files and in_package is not None:
            if in_package.is_moved:
                table = self.settings.table
                self.settings.warnings.append(
                    f"{path} is no file of {table.framework} {table.release}: {in_package.name} was"
                    " read, which has the same name"
                )
            self._put_from_file(in_package.settings)
        elif in_package is None or in_package.settings:  # but not base.yml: it has the defaults
            self._read_document(read_document(files.text(path)), files)

    def _read_document(
        self, document: Mapping[str, Any], files: LaunchFiles, depth: int = 0
    ) -> None:
        """Takes the settings of a document, over those of the document that its base_config
        names. `depth` counts such steps, so that files which name each other end."""
        base = document.get("base_config")
        if base is not None and depth < _MOST_BASES:
            self._read_base(str(base), files, depth)
        self._put_from_file(
            {name: value for name, value in document.items() if name != "base_config"}
        )

    def _read_base(self, base: str, files: LaunchFiles, depth: int) -> None:
        """Reads the file that base_config names, or adds a reservation where it was not sent."""
        in_package = package_file(f"configs/{base}")
        if base in files:
            self._read_document(read_document(files.text(base)), files, depth + 1)
        elif in_package is not None:
            self._put_from_file(in_package.settings)
        else:
            reason = "the settings in this file are not known"
            self.settings.add_text_reservation(shown("base_config", base), reason, "send its text")

    def _put_from_file(self, settings: Mapping[str, Any]) -> None:
        """Takes settings, and remembers that a file gave them rather than the command line."""
        for name, value in settings.items():
            self._put_checked(name, value)
            self._of_files.add(name)

    def _read_model_file(self) -> None:
        """Reads the file of the model, whose settings override those of other files, with a
        warning. A setting of the command line that differs from it is noted as a stop, as
        MaxText refuses it, unless override_model_config is set."""
        given = self.settings.given
        # An instruct model has the file of its base model.
        model = str(given.get("model_name", "default")).removesuffix("-Instruct")
        may_differ = given.get("override_model_config") is True
        for name, value in model_file(model).items():
            checked = self._checked_value(name, value)
            if name not in given:
                self.of_model[name] = checked
            elif given[name] == checked:
                continue
            elif name in self._of_files:
                self.settings.warnings.append(
                    f"{self.settings.shown(name)} is left out: MaxText's file of {model}, which"
                    f" says {shown(name, value)}, goes before the configuration"
                )
                del given[name]
                self.of_model[name] = checked
            elif not may_differ:
                self.settings.stops.append(_overriding_stop(name, given[name], model, value))

    def _checked_value(self, name: str, value: Any) -> Any:
        field = self.settings.table.field(name)
        return value if field is None else field.checked(value)

    # -- the command line

    def _read_command(self, command: Command) -> None:
        """Reads a command in MaxText's order of precedence: files, then key=value pairs, then
        the environment. An assignment in a branch of a script that may or may not run becomes a
        reservation."""
        self.slices = command.slices
        self._note_release(command.program or "")
        words = list(command.words)
        # Of bare arguments, such as "base.yml steps=10", the first was taken for the program.
        if command.program and command.program.endswith(_YAML):
            words.insert(0, command.program)
        paths = [word for word in words if _is_file(word)]
        self._stop_at_strays([word for word in words if not _is_file(word)])
        for path in paths:
            self._read_file(path, command.files)
        if not paths:
            self._put_from_file(default_file(command.program).settings)
        pairs = [match for word in words if (match := _PAIR.fullmatch(word))]
        self._read_pairs(command.program, [(match[1], match[2]) for match in pairs])
        self._read_environment(command.environment)
        for branch in command.in_branches:
            self.settings.note(Reservation.of_branch(branch))

    def _note_release(self, program: str) -> None:
        """Notes a program that only earlier releases have, whose settings may be other ones."""
        if _EARLIER_PROGRAM.search(program) and not self.settings.is_other_release:
            self.settings.is_earlier_program = True
            table = self.settings.table
            self.assumed.append(
                f"{program} is of a release before {table.framework} {table.release}, and its"
                f" settings are read as those of {table.release}"
            )

    def _stop_at_strays(self, words: Sequence[str]) -> None:
        """Notes a stop for each word that is neither key=value nor a file. OmegaConf takes the
        word for the name of a setting without a value, and MaxText refuses that setting. Raises
        Invalid where the command has no key=value at all, or has flags, because it is then of
        another program."""
        strays = [word for word in words if not _PAIR.fullmatch(word)]
        for word in strays:
            require_arguments_defined(word)
            if len(strays) == len(words) or word.startswith("-"):
                raise invalid_launch(word, "is no key=value, nor a file of settings")
        # For `steps: 10`, as in YAML, the first word is a name without a value, and means steps=10.
        for before, word, behind in zip(["", *words], words, [*words[1:], ""], strict=False):
            is_value = before.endswith(":") and before in strays
            if word not in strays or is_value:
                continue
            name = word.removesuffix(":")
            value = behind if word.endswith(":") else ""
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
                    is_of_name=True,  # refused whatever else is set
                )
            )

    def _read_pairs(self, program: str | None, pairs: Iterable[tuple[str, str]]) -> None:
        """Takes the key=value pairs of a command line. Adds a reservation for a program that
        does more than train, and ignores settings that only its reinforcement learning has."""
        module = module_name(program)
        reason_and_cure = self.settings.table.facts["programs"].get(module)
        if reason_and_cure is not None:
            self.settings.add_text_reservation(str(program), *reason_and_cure)
        for name, value in pairs:
            if module == "train_rl" and name in rl_settings():
                self.ignored.append(shown(name, value))
                continue
            self._put_checked(name, self._typed_value(name, value))
            self._of_files.discard(name)  # the file of the model does not override it now

    def _typed_value(self, name: str, text: str) -> Any:
        """Returns the value of a setting that is written as `text`: the list [1, 2] for "[1, 2]",
        since OmegaConf reads values as YAML. Raises Invalid for a text that the setting's type
        does not allow, and for a shell variable without a value."""
        field = self.settings.table.field(name)
        if field is not None and field.kind not in ("any", "list", "lists"):
            # An empty text stands for null where the setting may be null.
            return field.parse(text) if text or not field.is_optional else text
        if not self.settings.table.is_of_no_account(name):
            require_defined(name, text)
        if field is None:
            return text
        try:
            return read_yaml(text)
        except Invalid:
            return text

    def _put_checked(self, name: str, value: Any) -> None:
        """Sets a setting after a check of its type. The members of the object `lora` become
        settings of their own, and the base_config that every launch has is ignored."""
        field = self.settings.table.field(name)
        if name == "base_config" and str(value).endswith("base.yml"):
            self.ignored.append(shown(name, value))
        elif name == "lora" and isinstance(value, Mapping):
            for key, member in value.items():
                self.settings.put(f"lora.{key}", member)
        elif field is None and name in self._earlier:
            self._read_earlier(name, value)
        elif field is None:
            self.settings.put(name, value)
        elif value == "" and field.is_optional:
            self.settings.put(name, None)
        else:
            self.settings.put(name, field.checked(value))

    @property
    def may_be_earlier(self) -> bool:
        """Returns True where the launch may be of an earlier release, which refuses less."""
        return self.settings.is_earlier_program or self.settings.is_other_release

    @property
    def _earlier(self) -> Mapping[str, Any]:
        """Returns the settings that only earlier releases have, which are valid where the launch
        may be of one. Each has its default, and is null where it is of no account."""
        settings: Mapping[str, Any] = self.settings.table.facts["earlier"]
        return settings if self.may_be_earlier else {}

    def _read_earlier(self, name: str, value: Any) -> None:
        """Ignores a setting of earlier releases that changes nothing, or adds a reservation."""
        default = self._earlier[name]
        if default is None or str(value).lower() == str(default).lower():
            self.ignored.append(shown(name, value))
        else:
            reason = f"{self.settings.table.release} has no such setting"
            cure = "leave it out if it changes nothing"
            self.settings.add_text_reservation(shown(name, value), reason, cure)

    def _leave_out_idle(self) -> None:
        """Moves settings without effect to the ignored ones: those of adapters that are not
        switched on, the accumulation method for a single micro-batch, and logits in fp32 on
        TPUs, which multiply in bf16 unless matmul_precision is set (jax.lax.Precision.DEFAULT)."""
        given = self.settings.given
        idle: set[str] = set()
        if given.get("lora.enable_lora") not in (True, "true", "True"):
            idle |= {name for name in given if name.startswith("lora.")}
        if given.get("gradient_accumulation_steps", 1) == 1:
            idle.add("use_tunix_gradient_accumulation")
        is_tpu = given.get("hardware", "tpu") == "tpu"
        if is_tpu and given.get("matmul_precision", "default") == "default":
            idle.add("logits_dot_in_fp32")
        self.ignored += [shown(name, given.pop(name)) for name in [*given] if name in idle]

    # -- the environment

    def _read_environment(self, environment: Mapping[str, str]) -> None:
        """Reads variables named M_NAME as settings (configs/pyconfig.py, yaml_key_to_env_key),
        the flags of the XLA compiler, and the memory that JAX may allocate."""
        for variable, value in environment.items():
            name = variable.removeprefix("M_").lower()
            if variable.startswith("M_") and name in self.settings.table.fields:
                self._put_checked(name, self._typed_value(name, value))
                self._of_files.discard(name)  # the file of the model does not override it now
            elif variable in _COMPILER_FLAGS:
                self._read_compiler_flags(variable, value)
            elif variable in _MEMORY_FRACTIONS and "gpu" in self.settings.given.get("hardware", ""):
                self._read_memory_fraction(variable, value)

    def _read_memory_fraction(self, variable: str, value: str) -> None:
        """Reads the part of a GPU's memory that JAX may allocate. Adds a reservation for a value
        that is no part of it, or is not known."""
        is_number = re.fullmatch(r"0{0,9}\.\d{1,9}|1(?:\.0{0,9})?", value, re.ASCII)
        if is_number and float(value) > 0:
            self.memory_fraction = float(value)
        else:
            reason = "it decides how much memory JAX may allocate"
            cure = "give cluster.usable_memory_gib in the request"
            self.settings.add_text_reservation(
                shown(variable, value), reason, cure, answered_by="cluster.usable_memory_gib"
            )

    def _read_compiler_flags(self, variable: str, value: str) -> None:
        """Adds a reservation for each XLA flag that changes what is computed or keeps
        collectives from overlapping. Other flags tune kernels and schedules, which the model
        does not describe, and are ignored."""
        # By pattern of a flag's name: the reason for the reservation, and advice.
        flags: Mapping[str, tuple[str, str]] = self.settings.table.facts["xla_flags"]
        for word in value.split():
            flag = word.lstrip("-")
            pattern = next((pattern for pattern in flags if fnmatchcase(flag, pattern)), None)
            if pattern is None:
                self.ignored.append(shown(variable, word))
            else:
                self.settings.add_text_reservation(shown(variable, word), *flags[pattern])


def _is_file(word: str) -> bool:
    return word.endswith(_YAML) and not _PAIR.fullmatch(word)


def _overriding_stop(setting: str, value: Any, model: str, model_value: Any) -> Stop:
    """Returns the stop for a setting of the command line that differs from the file of the
    model."""
    rule = (
        f"differs from {model_value} in MaxText's file of {model}, at which MaxText stops: leave it"
        " out, or set override_model_config=true"
    )
    source = "maxtext 0.2.5: configs/pyconfig.py, validate_no_keys_overridden_twice"
    cure = "override_model_config=true"
    return Stop(setting=setting, value=value, rule=rule, source=source, cure=cure)
