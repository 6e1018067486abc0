"""Predict published runs in their own layouts and compare.

    python -m tests.benchmarks.fidelity --runs FILE [--cross-validate [--write]] [--calibrate K]
        [--json]

Every run goes through the code of POST /v1/predictions; its identifier, title, notes and
measurement are no inputs. Runs that publish only FLOP/s or MFU are converted in their own
convention and counted as such; what a row leaves open is the stack's default, or the best that
fits, and counted as assumed. The shipped profile was fitted to published runs: figures on those are
in-sample. `--cross-validate` predicts each run by a fit that saw no run of its model by its source,
again by one that saw none of its model, chip and stack, of its family, and of its organisation;
`--calibrate K` lets a fit without its family learn from K runs of it first. `--write` puts the
table of a cross-validation into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from models.errors import DomainError, Invalid
from models.layouts.rules import RULES, require_legal
from models.prediction.coverage import source_pseudonym
from models.spec.profile import Profile, shipped_profile
from service.formats import published
from service.tools.fit_profile import choose_layout, group_key, model_shape, organisation
from tests.benchmarks import pages, scores
from tests.benchmarks.scores import Scored
from tests.benchmarks.unseen import Unseen

_FOLDS = 25
COLLECTED = {"model", "cluster", "training", "measured"}
UNSTATED = {
    "family": "unknown",
    "trust": "C",
    "outcome": "ok",
    "failure": None,
    "source": {"title": ""},
}


def every(path: Path) -> list[dict[str, Any]]:
    """The runs of a file, one JSON object a line."""
    rows = published.read_rows(path)
    for number, row in enumerate(rows, 1):
        if missing := sorted(COLLECTED - row.keys()):
            raise SystemExit(
                f"{path}: run {number} has no {' or '.join(missing)}: it is no published run as it"
                " was collected (service/formats/published/runs.py); those of"
                " models/data/runs.jsonl are in the project's own form, which GET /v1/evidence"
                " shows beside their predictions"
            )
    return rows


def load(path: Path) -> list[dict[str, Any]]:
    """Measured runs, and those that are known to have run out of memory."""
    rows = [{**UNSTATED, **row} for row in every(path)]
    return [row for row in rows if row["outcome"] == "ok" or row["failure"] == "out_of_memory"]


def score(rows: Iterable[dict[str, Any]], profile: Profile) -> tuple[list[Scored], Counter[str]]:
    scored: list[Scored] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        try:
            scored.append(_scored(row, profile))
        except DomainError as error:
            skipped[reason(error)] += row["outcome"] == "ok"
    return scored, +skipped


def _scored(row: dict[str, Any], profile: Profile) -> Scored:
    run = published.read(row, profile.software_year)
    if run.step_time_s is None and row["outcome"] == "ok":
        raise Invalid("measured", None, "neither a time nor a rate")
    layout = choose_layout(run, profile)
    require_legal(run.problem, layout)
    return Scored.of(row, run, layout, profile)


def reason(error: DomainError) -> str:
    if isinstance(error, Invalid):
        named = error.value if error.value in {rule.name for rule in RULES} else error.rule
        return f"{error.field}: {named}"
    return str(error)


def report(scored: list[Scored]) -> dict[str, Any]:
    """Figures by family, chip and stack, and means over families. What is said of memory with
    confidence is a share of all runs."""
    by_family = scores.families(scored)
    failed, ran = ([s for s in scored if s.failed is wanted] for wanted in (True, False))
    sure = {
        "oom_called_sure": scores.called_sure(failed),
        "ran_called_sure": scores.called_sure(ran),
    }
    known = {name: share for name, share in sure.items() if share is not None}
    return {
        "overall": scores.overall(by_family) | known,
        "families": by_family,
        "chips": scores.by(scored, lambda s: s.row["cluster"]["chip"]),
        "stacks": scores.by(scored, lambda s: s.row["stack"]),
    }


_COLUMNS = {
    "n": "{:6d}", "converted": "{:9d}", "median_abs_error": "{:7.1%}", "p90_abs_error": "{:7.1%}",
    "bias": "{:+7.1%}", "repeat_noise": "{:7.1%}", "coverage80": "{:7.0%}",
    "half_width80": "{:7.1%}", "kendall_tau": "{:7.2f}", "top1_regret": "{:7.1%}",
    "oom_called_sure": "{:7.0%}", "ran_called_sure": "{:7.0%}",
    "memory_median_abs_error": "{:7.1%}", "memory_coverage80": "{:7.0%}",
}  # fmt: skip
_HEADS = (
    "n",
    "converted",
    "median",
    "p90",
    "bias",
    "repeat",
    "cover",
    "width",
    "tau",
    "regret",
    "oom-sure",
    "ran-sure",
    "memory",
    "covered",
)


def show(title: str, result: dict[str, Any]) -> None:
    print(f"\n{title}")
    print(
        f"{'':16s}"
        + " ".join(
            head.rjust(len(f.format(0))) for head, f in zip(_HEADS, _COLUMNS.values(), strict=True)
        )
    )
    for name, values in [*result["families"].items(), ("macro", result["overall"])]:
        cells = [
            f.format(values[key]) if key in values else " " * (len(f.format(0)) - 1) + "-"
            for key, f in _COLUMNS.items()
        ]
        print(f"{name:16s}" + " ".join(cells))


def families_it_never_saw(scored: Sequence[Scored], profile: Profile) -> list[Scored]:
    """The runs of families of which no run is behind the profile."""
    known = {code for one in profile.seen for code in one.sources}
    return [s for s in scored if source_pseudonym(s.row["family"]) not in known]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--cross-validate", action="store_true")
    parser.add_argument("--calibrate", type=int, metavar="K")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write and not arguments.cross_validate:
        parser.error("--write needs --cross-validate")
    rows = load(arguments.runs)
    total = sum(row["outcome"] == "ok" for row in rows)
    scored, skipped = score(rows, shipped_profile())
    expressed = sum(not s.failed for s in scored)
    result = {
        "expressed": expressed,
        "total": total,
        "skipped": dict(skipped.most_common()),
        **report(scored),
    }
    result["assumed"] = dict(
        Counter(field for s in scored for field in set(s.run.assumed)).most_common()
    )
    print(f"{expressed} of {total} measured runs expressed")
    for why, count in result["skipped"].items():
        print(f"  skipped {count:4d}  {why}")
    show("with the shipped profile", result)
    later = families_it_never_saw(scored, shipped_profile())
    if later:
        result["later_sources"] = report(later)
        show("of these, sources that the shipped profile never saw", result["later_sources"])
    if arguments.cross_validate or arguments.calibrate:
        result |= _unseen(rows, scored, arguments.cross_validate, arguments.calibrate)
    print(
        "macro: means over families, families of fewer than 5 runs as one; oom-sure and ran-sure"
        " are shares of all runs"
    )
    if arguments.json:
        print(json.dumps(result))
    if arguments.write:
        command = "python -m tests.benchmarks.fidelity --runs FILE --cross-validate --write"
        pages.write_between_markers("accuracy.md", "accuracy", accuracy_table(result), command)
        unseen = result["organisation_left_out"]
        pages.write_between_markers("accuracy.md", "stacks and chips", trust_table(unseen), command)


def accuracy_table(result: dict[str, Any]) -> str:
    """What docs/accuracy.md shows of a cross-validation: a line for every family."""
    heads = [
        "family", "runs", "seen: median error", "unseen group: median", "unseen family: median",
        "unseen organisation: median", "90th percentile", "bias", "in its 80% interval",
        "half-width", "repeats differ by",
    ]  # fmt: skip
    parts = (
        result,
        result["cross_validated"],
        result["family_left_out"],
        result["organisation_left_out"],
    )
    rows = [
        _accuracy_row(name, *(part["families"][name] for part in parts))
        for name in result["families"]
    ]
    rows.append(_accuracy_row("**macro** (means)", *(part["overall"] for part in parts)))
    return pages.table(heads, rows)


def trust_table(unseen: dict[str, Any]) -> str:
    """How far to trust an answer for a stack and a chip: what fits that saw no run of an
    organisation said of its runs."""
    rows = [
        [
            name, kind, f"{one['n']:,}", f"{one['median_abs_error']:.1%}",
            f"{one['p90_abs_error']:.1%}", f"{one['coverage80']:.0%}", f"{one['half_width80']:.1%}",
        ]
        for kind in ("stack", "chip")
        for name, one in sorted(unseen[f"{kind}s"].items(), key=lambda item: -item[1]["n"])
        if one["n"] >= scores.SMALL_FAMILY
    ]  # fmt: skip
    heads = ["name", "", "runs", "median error", "90th percentile", "in its interval", "half-width"]
    return pages.table(heads, rows)


def _accuracy_row(
    name: str,
    seen: dict[str, Any],
    group: dict[str, Any],
    family: dict[str, Any],
    organisation: dict[str, Any],
) -> list[str]:
    noise = f"{seen['repeat_noise']:.1%}" if "repeat_noise" in seen else ""
    return [
        name, f"{seen['n']:,}", f"{seen['median_abs_error']:.1%}",
        f"{group['median_abs_error']:.1%}", f"{family['median_abs_error']:.1%}",
        f"{organisation['median_abs_error']:.1%}", f"{organisation['p90_abs_error']:.1%}",
        f"{organisation['bias']:+.1%}", f"{organisation['coverage80']:.0%}",
        f"{organisation['half_width80']:.1%}", noise,
    ]  # fmt: skip


def fold_of_group(row: dict[str, Any]) -> str:
    """The groups of a model, chip and stack, dealt out to folds."""
    return str(zlib.crc32(group_key(row).encode()) % _FOLDS)


def fold_of_model(row: dict[str, Any]) -> str:
    """The models of a source, dealt out to folds. Its other models stay, and so do other sources of
    the model."""
    key = json.dumps([row["family"], model_shape(row)], sort_keys=True)
    return str(zlib.crc32(key.encode()) % _FOLDS)


_LEFT_OUT: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("model_left_out", "model by the same source", fold_of_model),
    ("cross_validated", "same model, chip and stack", fold_of_group),
    ("family_left_out", "family", lambda row: str(row["family"])),
    ("organisation_left_out", "organisation", organisation),
)
"""What a fit leaves out together: the key of its figures, in words, and by what runs are told
apart."""


def _unseen(
    rows: list[dict[str, Any]], scored: list[Scored], validate: bool, runs_seen: int | None
) -> dict[str, Any]:
    unseen, result = Unseen(rows), dict[str, Any]()
    print(
        f"\n{len(unseen.fit.terms)} coefficients, {unseen.free_coefficients:.0f} of them free by"
        " the data's say"
    )
    if validate:
        for key, words, label in _LEFT_OUT:
            result[key] = report(unseen.left_out(scored, label))
            show(f"by fits that saw no run of the {words}", result[key])
    if runs_seen:
        result["calibrated"] = {"runs": runs_seen, "families": unseen.recalibrated(runs_seen)}
        print(
            f"\nby fits that saw {runs_seen} runs of the family: median error, its standard error"
        )
        for family, values in result["calibrated"]["families"].items():
            print(f"{family:16s} {values['median_abs_error']:7.1%} {values['standard_error']:7.1%}")
    return result


if __name__ == "__main__":
    main()
