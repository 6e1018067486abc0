"""The end of a run that died: it ran out of memory, its layout breaks a rule, or the reason has
nothing to do with its layout."""

from __future__ import annotations

from models.advice.remedies import must_change
from models.advice.rule_cures import BrokenRule
from models.cost.memory_uncertainty import percent
from models.cost.predictions import MEMORY_TERMS, in_gib
from models.layouts.rule_sources import rule_source
from models.prediction.prediction import Prediction
from models.spec.constraints import SAFE_FIT_PROBABILITY
from service.learning.examination import Examination
from service.learning.explained_runs import ExplainedRun
from service.learning.logged_runs import out_of_memory_words
from service.schemas.check import BrokenRuleAnswer
from service.schemas.explanation import FailureExplained, FailureKind, MemoryShare

_MEANING = {in_gib(name): text for name, text in MEMORY_TERMS.items()}
_MEMORY_FIGURES = (
    "needed_gib", "needed_low_gib", "needed_high_gib", "usable_gib", "fit_probability",
)  # fmt: skip
_TERMS_NAMED = 3
_LEAST_SHARE = 1e-3  # of the memory: terms that take less are not shown


def failure_explained(examination: Examination) -> FailureExplained:
    """Returns why a run died, with the rules that its layout breaks and the memory that it needed.
    The fields of memory are None where the layout is not legal, because it then has no
    prediction."""
    run = examination.run
    prediction = examination.prediction
    error_line = None if run.trouble is None else run.trouble.last_error
    kind = _failure_kind(examination)
    return FailureExplained(
        kind=kind,
        summary=_failure_sentence(kind, examination),
        error_line=error_line,
        broken_rules=[_broken_rule(run, broken) for broken in examination.check.broken_rules],
        # Without a prediction, `prediction` is None, and so is each figure.
        **{name: getattr(prediction, name, None) for name in _MEMORY_FIGURES},
        stage=prediction and prediction.memory_stage,
        memory=_memory_shares(prediction),
    )


def _failure_kind(examination: Examination) -> FailureKind:
    """Returns the kind of cause for which a run died: a broken rule, memory (which was predicted
    not to fit, or predicted to fit, or is likely though the log does not say so), or something that
    has nothing to do with the layout."""
    prediction = examination.prediction
    if prediction is None:
        return "broken_rule"
    probability = prediction.fit_probability  # that the run has enough memory
    if examination.memory_shown.outcome == "ran_out":
        return "unlikely_out_of_memory" if probability >= SAFE_FIT_PROBABILITY else "out_of_memory"
    # Where it is not known whether memory ran out, a layout that probably does not fit is blamed.
    return (
        "memory_likely"
        if must_change(prediction, examination.memory_shown)
        else "not_of_the_layout"
    )


def _failure_sentence(kind: FailureKind, examination: Examination) -> str:
    """Returns a sentence on why a run died."""
    check = examination.check
    trouble = examination.run.trouble
    quote = f": “{trouble.last_error}”" if trouble and trouble.last_error else ""
    if check.prediction is None:  # then a rule is broken
        rule = check.broken_rules[0]
        return f"the framework refuses this layout ({rule.rule.name}): {rule.message}"
    needs = memory_words(check.prediction)
    largest = _largest_terms(check.prediction)
    if kind == "out_of_memory":
        return f"it ran out of memory, as was to be expected: {needs} ({largest})"
    if kind == "unlikely_out_of_memory":
        return (
            f"it ran out of memory though it was predicted to fit: {needs}. Look for what no layout"
            " decides: other processes on the devices, sequences longer than said, an evaluation,"
            " fragmentation (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
        )
    if kind == "memory_likely":
        return (
            f"it most likely ran out of memory, whatever its log says{quote}: {needs} ({largest})"
        )
    # A run that trained some steps did fit, whatever was predicted.
    fits = "trained some steps" if examination.memory_shown.outcome == "fitted" else needs
    if trouble and (words := out_of_memory_words(trouble)):
        return f"{words}. The layout is legal, and {fits}"
    if not quote:
        return f"neither memory nor layout explains it: the layout is legal, and {fits}"
    return f"the error is not one of memory or layout{quote}. The layout is legal, and {fits}"


def memory_words(prediction: Prediction) -> str:
    """Returns words such as "a device on stage 0 needs 70.1 (66.0 to 74.0) of 79.0 GiB, which fits
    with a probability of 99%"."""
    stage = f" on stage {prediction.memory_stage}" if prediction.layout.pp > 1 else ""
    return (
        f"a device{stage} needs {prediction.needed_gib:.1f} ({prediction.needed_low_gib:.1f} to"
        f" {prediction.needed_high_gib:.1f}) of {prediction.usable_gib:.1f} GiB, which fits with a"
        f" probability of {percent(prediction.fit_probability)}"
    )


def _largest_terms(prediction: Prediction) -> str:
    """Returns the largest terms of memory in words, such as "30.1 GiB: weights; 12.0 GiB:
    activations"."""
    largest = sorted(prediction.memory_gib.items(), key=lambda item: -item[1])[:_TERMS_NAMED]
    return "; ".join(f"{gib:.1f} GiB: {_MEANING[name]}" for name, gib in largest)


def _broken_rule(run: ExplainedRun, broken: BrokenRule) -> BrokenRuleAnswer:
    """Returns a broken rule with the field of the request that breaks it and the cure, as the
    answer shows it."""
    if broken.is_of_batch:  # no field of the layout is to blame, but the global batch
        return BrokenRuleAnswer.of_batch(broken, run.question, run.problem.stack)
    layout_field = run.layout_field
    return BrokenRuleAnswer(
        name=broken.rule.name,
        field=layout_field if broken.knob is None else f"{layout_field}.{broken.knob}",
        setting=None,
        value=None if broken.knob is None else getattr(run.completed_layout, broken.knob),
        rule=broken.message,
        source=rule_source(broken.rule, run.problem.stack),
        cure=broken.cure,
    )


def _memory_shares(prediction: Prediction | None) -> list[MemoryShare]:
    """Returns the terms of the predicted memory with their shares, the largest first. Terms too
    small to matter are left out; without a prediction there are none."""
    if prediction is None:
        return []
    shares = [
        MemoryShare(term=term, gib=gib, share=gib / prediction.needed_gib, meaning=_MEANING[term])
        for term, gib in prediction.memory_gib.items()
        if gib > _LEAST_SHARE * prediction.needed_gib
    ]
    return sorted(shares, key=lambda share: -share.gib)
