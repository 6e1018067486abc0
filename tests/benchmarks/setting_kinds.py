"""Counts the settings of each format by what readers make of them.

`python -m tests.benchmarks.setting_kinds` prints a line a table: how many settings are read, of no
account and not described, how many of the last have a reason of their own, and what becomes of a
name that is in no table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from service.formats.launch import facts
from service.formats.settings.field_table import FieldTable, field_table
from service.formats.settings.reservation import COULD_MATTER

FIELDS = Path(facts.__file__).parent / "fields"


def tables() -> dict[str, FieldTable]:
    """Every table of settings, by the name of its file."""
    found: dict[str, FieldTable] = {}
    for path in sorted(FIELDS.glob("*.json")):
        document = facts.facts(path.stem)
        if "fields" in document and "version" in document:
            found[path.stem] = field_table(path.stem)
    return found


def main() -> None:
    print(f"{'table':24}{'read':>6}{'no account':>12}{'not described':>15}{'reasons':>9}  unknown")
    for name, table in tables().items():
        uses = Counter(field.use for field in table.fields.values())
        reasons = sum(
            field.use == "not_described" and field.reason != COULD_MATTER
            for field in table.fields.values()
        )
        counts = f"{uses['read']:6}{uses['no_account']:12}{uses['not_described']:15}{reasons:9}"
        print(f"{name:24}{counts}  {table.unknown}")


if __name__ == "__main__":
    main()
