"""The faults for which a framework refuses a checked job, in the framework's own words.

A *knob* is one choice of a layout, such as tp, and a *setting* is what a framework calls it. A
*stop* is a setting with which the framework refuses to start.
"""

from __future__ import annotations

from functools import partial

from models.advice.layout_check import LayoutCheck
from models.advice.rule_cures import BrokenRule, nearest_cures_in_words
from models.layouts.rule_sources import options_source, rule_source
from service.ask.resolved_check import ResolvedCheck
from service.field_violations import echoed_value, truncate
from service.formats.launch.job import Inexpressible
from service.formats.launch.knob_settings import alternatives_in_settings
from service.formats.settings.stop import Stop
from service.schemas.check import BrokenRuleAnswer

MOST_CHARACTERS = 100  # of a setting or its value
MOST_RULE_CHARACTERS = 400  # a few lines of a terminal


def refusals(
    job: ResolvedCheck, check: LayoutCheck, unsaid: Inexpressible | None
) -> list[BrokenRuleAnswer]:
    """Returns the faults at which the framework stops: rules that the layout breaks, settings, and
    `unsaid`, a value without a setting, where the framework has no such value.

    A file that was not sent may hold settings that mend the faults. Beside such a file only names
    that the framework does not have are sure to be refused, and only they are returned."""
    is_open = any(reservation.is_open for reservation in job.reservations)  # such as of that file
    broken = [] if is_open else [_broken_rule(job, rule) for rule in check.broken_rules]
    stops = [stop for stop in job.stops if stop.is_of_name or not is_open]
    unknown = [unsaid] if unsaid is not None and unsaid.is_refused else []
    return [
        *broken,
        *(_stop_answer(job, stop) for stop in stops),
        *(_unknown_value(job, value) for value in unknown),
    ]


def _broken_rule(job: ResolvedCheck, broken: BrokenRule) -> BrokenRuleAnswer:
    """Returns a broken rule with the field of the request that is to blame. In a launch it is the
    framework's setting."""
    stack = job.resolved.problem.stack
    setting = job.settings.get("global_batch" if broken.is_of_batch else broken.knob or "")
    if broken.is_of_batch and job.read is None:
        return BrokenRuleAnswer.of_batch(broken, job.question, stack, setting)
    # A launch has the setting, and a layout the knob.
    blamed = broken.knob if job.read is None else setting or broken.knob
    # The global batch is a value of the workload, and any knob one of the layout.
    value = job.question.workload.global_batch if broken.is_of_batch else None
    return BrokenRuleAnswer(
        name=broken.rule.name,
        kind=broken.rule.kind,
        field=job.place if blamed is None else f"{job.place}.{blamed}",
        setting=setting,
        value=value if broken.knob is None else getattr(job.completed_layout, broken.knob),
        rule=broken.message,
        source=rule_source(broken.rule, stack),
        cure=broken.cure if job.read is None else _cure_in_settings(job.read.format, broken),
    )


def _cure_in_settings(format_: str, broken: BrokenRule) -> str:
    """Returns the nearest cures of a broken rule as settings of the framework, joined by "or". If
    no cure has a setting, points to the best layout."""
    express = partial(alternatives_in_settings, format_)
    return nearest_cures_in_words(broken.cures, express) or (
        "the settings of the best layout: no other value of one setting obeys it"
    )


def _stop_answer(job: ResolvedCheck, stop: Stop) -> BrokenRuleAnswer:
    """Returns a fault at which the framework stops, in the form of a broken rule, with long texts
    cut."""
    setting = truncate(stop.setting, MOST_CHARACTERS)
    # A name that the framework does not have can go; else the rule says what to write.
    without_cure = "leave it out" if stop.is_of_name else stop.rule
    return BrokenRuleAnswer(
        name="framework_stops",
        field=f"{job.place}.{setting}",
        setting=setting,
        value=echoed_value(stop.value),
        rule=truncate(stop.rule, MOST_RULE_CHARACTERS),
        source=stop.source,
        cure=truncate(stop.cure or without_cure, MOST_RULE_CHARACTERS),
    )


def _unknown_value(job: ResolvedCheck, unsaid: Inexpressible) -> BrokenRuleAnswer:
    """Returns a value that the framework does not have, in the form of a broken rule."""
    stack = job.resolved.problem.stack
    return BrokenRuleAnswer(
        name="framework_stops",
        field=unsaid.field,
        setting=None,
        value=echoed_value(unsaid.value),
        rule=truncate(f"stack {stack.id} has no {unsaid.value}", MOST_RULE_CHARACTERS),
        source=options_source(stack),
        cure=truncate(unsaid.cure, MOST_RULE_CHARACTERS),
    )
