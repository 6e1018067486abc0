"""The administrator's settings of all hooks, in a file of TOML:

url = "http://shardwright.example:8000"
key_file = "/etc/shardwright/key"
enforce = ["illegal"]

[chips]
gpu-large = "h100"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from shardwright.client.settings import ClientSettings

POLICY_FILE = "/etc/shardwright/hooks.toml"
"""The file of the settings, unless SHARDWRIGHT_HOOKS names another."""
BUDGET_S = 2.0  # people wait for sbatch and kubectl; dstack gives up after 8 s, SkyPilot after 30
_ENFORCEABLE = frozenset({"illegal", "will_not_fit"})
"""The verdicts that speak against a job. A warning is none, nor is what cannot be told."""
_NAMES = frozenset({"url", "key_file", "budget_s", "enforce", "patch", "chips"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPolicy:
    """The service that hooks ask, their patience, and their rights over jobs."""

    service: ClientSettings
    budget_s: float = BUDGET_S
    """The time that a hook may take in all."""
    enforce: frozenset[str] = frozenset()
    """The verdicts that refuse a job."""
    patch: bool = False
    """True where jobs get variables and annotations with the verdict."""
    chips: Mapping[str, str] = field(default_factory=dict)
    """Chips of the catalogue by the site's own names: partitions, GPU types, node labels."""

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Returns the settings in the file, and for what it leaves out those of the environment.
        Raises OSError where a named file cannot be read, and ValueError for a wrong setting."""
        variables = os.environ if environment is None else environment
        path = Path(variables.get("SHARDWRIGHT_HOOKS") or POLICY_FILE)
        is_named = "SHARDWRIGHT_HOOKS" in variables
        text = path.read_text(encoding="utf-8") if is_named or path.exists() else ""
        try:
            return cls._from_document(tomllib.loads(text), variables)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def _from_document(cls, document: Mapping[str, Any], environment: Mapping[str, str]) -> Self:
        """Returns the settings of a parsed file. Raises ValueError for an unknown setting, or a
        verdict that may not be enforced."""
        unknown = sorted(document.keys() - _NAMES)
        if unknown:
            names = ", ".join(sorted(_NAMES))
            raise ValueError(f"{unknown[0]} is no setting; there are {names}")
        enforce = frozenset(document.get("enforce", ()))
        if not enforce <= _ENFORCEABLE:
            raise ValueError(f"enforce may name {' and '.join(sorted(_ENFORCEABLE))} only")
        return cls(
            service=_service(document, environment),
            budget_s=float(document.get("budget_s", BUDGET_S)),
            enforce=enforce,
            patch=bool(document.get("patch", False)),
            chips=dict(document.get("chips", {})),
        )

    def chip_of(self, names: Iterable[str | None]) -> str | None:
        """Returns the chip of the first of these names, such as a partition, that the site's table
        has; None where it has none."""
        return next((self.chips[name] for name in names if name and name in self.chips), None)


def _service(document: Mapping[str, Any], environment: Mapping[str, str]) -> ClientSettings:
    """Returns the address and the key that the file gives, or else those of the environment."""
    variables = dict(environment)
    if "url" in document:
        variables["SHARDWRIGHT_URL"] = str(document["url"])
    if "key_file" in document:
        variables.pop("SHARDWRIGHT_KEY", None)  # that of the user, which goes before a file
        variables["SHARDWRIGHT_KEY_FILE"] = str(document["key_file"])
    return ClientSettings.from_environment(variables)
