"""A check as hooks show it: a mark for programs and a line for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from shardwright.run_id import VARIABLE, run_id

_TITLES = {
    "go": "go",
    "go_with_warnings": "go, with warnings",
    "will_not_fit": "will not fit",
    "illegal": "will not start",
    "cannot_tell": "cannot tell",
}
_MOST_SETTINGS = 3  # in one line; a whole layout has ten, which the check itself lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A verdict, and the sentences in which a hook tells it."""

    verdict: str | None = None
    """One of a check; None where there is none."""
    sentences: tuple[str, ...] = ()
    """Sentences for people, the most important first; none where there is nothing to say, as for a
    job that trains nothing."""
    is_refused: bool = False
    """True where the administrator has such jobs refused."""
    run_id: str | None = None
    """Id by which a report of the run names this check."""

    @classmethod
    def of(cls, answer: Mapping[str, Any], enforce: Collection[str]) -> Self:
        """Returns the finding of a check. `answer` is the service's, and a job is refused if its
        verdict is in `enforce`."""
        verdict = str(answer["verdict"])
        title = _TITLES.get(verdict, verdict)
        return cls(
            verdict=verdict,
            sentences=(f"{title}: {_reason(answer)}", *_change(answer.get("first_change"))),
            is_refused=verdict in enforce,
            run_id=run_id("check", answer["id"]) if answer.get("id") else None,
        )

    @property
    def mark(self) -> str | None:
        """Returns the verdict as a comment of Slurm or an annotation has it, such as
        "shardwright:go:check-0199c2f4"; None where there was no verdict."""
        if self.verdict is None:
            return None
        return ":".join(filter(None, ("shardwright", self.verdict, self.run_id)))

    def variables(self, url: str) -> dict[str, str]:
        """Returns the environment variables that tell a run where the service is, and which check
        it belongs to."""
        given = {"SHARDWRIGHT_URL": url, VARIABLE: self.run_id}
        return {name: value for name, value in given.items() if value is not None}

    def line(self, more: str) -> str:
        """Returns all sentences in one line. `more` is the command or place that tells more, named
        at the end."""
        where = (f"more: {more}",) if self.verdict is not None else ()
        return "shardwright: " + "; ".join((*self.sentences, *where)) if self.sentences else ""


def _reason(answer: Mapping[str, Any]) -> str:
    """Returns the reason of a verdict: the first broken rule, the first warning, or else the
    summary. A rule with a setting is preferred, since people can look for it."""
    broken: Sequence[Mapping[str, Any]] = answer.get("broken_rules") or ()
    if broken:
        rule = next((rule for rule in broken if rule.get("setting")), broken[0])
        flag = f"{rule['setting']} {rule['value']}: " if rule.get("setting") else ""
        return f"{flag}{rule['rule']}"
    if answer["verdict"] == "go_with_warnings" and answer.get("warnings"):
        return str(answer["warnings"][0]["message"])
    return str(answer["summary"])


def _change(change: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the first change as a sentence, with settings in the framework's names where they are
    known; empty without a change."""
    if change is None:
        return ()
    settings = change.get("settings") or ()
    words = ", ".join(_setting(setting) for setting in settings[:_MOST_SETTINGS]) or change["words"]
    others = f" and {len(settings) - _MOST_SETTINGS} more" if len(settings) > _MOST_SETTINGS else ""
    gain = change.get("gain")
    worth = f" ({gain:.0%} more steps an hour)" if gain is not None and gain > 0 else ""
    return (f"change first: {words}{others}{worth}",)


def _setting(setting: Mapping[str, Any]) -> str:
    """Returns a setting at its new value as a command line has it, or "no NAME" for one to leave
    out."""
    value = setting["to"]
    if value is True:
        return str(setting["name"])
    if value in (None, False):
        return f"no {setting['name']}"
    words = " ".join(map(str, value)) if isinstance(value, list) else value
    return f"{setting['name']} {words}"
