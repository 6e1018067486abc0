"""Whether a calibration's posterior covers the truth: a synthetic fleet whose coefficients are
known.

    python -m tests.benchmarks.coverage [--seeds 1000] [--json] [--write]

The truth of each seed is drawn from what a calibration takes as its prior: the shipped profile's
joint posterior, the spreads of a fleet, and the scatter that the profile expects of runs it has not
seen. Its runs are what the model says under the truth. Counted are the coefficients that the
reports identify: how often their truth lies in the 80% interval. Two fleets are not drawn from the
prior: a "quiet" one, whose runs scatter less than expected, and one of "another physics", whose
chips slow down with their number, which the model does not know.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from models.calibration.calibrate import apply_estimate
from models.calibration.fleet_effects import with_fleet_offsets
from models.calibration.observation import Observation, with_limited_sources
from models.calibration.posterior import Posterior, shipped_posterior
from models.calibration.time_and_memory_fits import step_time_noise, time_fit
from models.columns import Array
from models.cost.predictions import predict
from models.spec import catalogue
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Z80, Profile, TermKey, shipped_profile
from models.spec.workload import Workload
from tests.benchmarks import pages

REPORTS = (5, 20, 200)
_QUIET = 0.05
_SOURCES = 4
_IDENTIFIED = 0.9


@dataclass(frozen=True)
class World:
    """How runs differ from what the model says of them: noise of log step time, and a slow-down."""

    noise: Callable[[Problem], float]
    slowdown: Callable[[Problem], float]


@cache
def questions() -> tuple[tuple[Problem, Layout], ...]:
    """A fleet of two chips and two stacks."""
    found = []
    for chip, chips in (("h100", 64), ("h100", 256), ("h200", 64)):
        for model, batch in (("llama-3.1-8b", 2), ("llama-3.1-70b", 2), ("mixtral-8x7b", 4)):
            for stack, layout in _layouts(chips).items():
                problem = Problem(
                    architecture=catalogue.architecture(model),
                    cluster=catalogue.cluster(chip, chips),
                    workload=Workload(seq_len=8192, global_batch=chips * batch),
                    stack=catalogue.stack(stack),
                )
                found.append((problem, layout))
    return tuple(found)


def _layouts(chips: int) -> dict[str, Layout]:
    return {
        "torchtitan": Layout(dp_shard=chips, zero_stage=3, recompute="full"),
        "megatron": Layout(
            tp=8, dp_shard=chips // 8, zero_stage=1, sequence_parallel=True, recompute="selective"
        ),
    }


@dataclass(frozen=True)
class Fleet:
    """What a calibration starts from."""

    profile: Profile
    posterior: Posterior

    @classmethod
    def shipped(cls) -> Fleet:
        problems = {problem for problem, _ in questions()}
        scopes = {scope for problem in problems for scope in problem.scopes}
        profile = shipped_profile().with_offsets(scopes)
        return cls(with_fleet_offsets(profile, problems), shipped_posterior())

    def truth(self, generator: np.random.Generator) -> Profile:
        """A draw from the prior."""
        free = [term for term in self.profile.terms if term.key not in self.posterior.keys]
        drawn: dict[TermKey, float] = {
            t.key: t.mean + t.spread * float(generator.standard_normal()) for t in free
        }
        factor = np.linalg.cholesky(self.posterior.precision)
        joint = np.linalg.solve(factor.T, generator.standard_normal(len(self.posterior.keys)))
        for key, offset in zip(self.posterior.keys, joint, strict=True):
            drawn[key] = self.profile.by_key[key].mean + float(offset)
        return self.profile.with_terms(
            {t.key: replace(t, mean=drawn[t.key]) for t in self.profile.terms}
        )

    def reports(
        self, truth: Profile, count: int, generator: np.random.Generator, world: World
    ) -> list[Observation]:
        asked = questions()
        times = [
            _seconds(problem, layout, truth) * world.slowdown(problem) for problem, layout in asked
        ]
        found = []
        for i in range(count):
            which = int(generator.integers(len(asked)))
            problem, layout = asked[which]
            noise = world.noise(problem) * generator.standard_normal()
            seconds = times[which] * float(np.exp(noise))
            found.append(
                Observation(
                    key=f"{i:06d}",
                    problem=problem,
                    layout=layout,
                    step_time_s=seconds,
                    source=f"source {i % _SOURCES}",
                    group=f"{which}",
                )
            )
        return found


def _seconds(problem: Problem, layout: Layout, profile: Profile) -> float:
    found = predict(problem, Layouts.of([layout]), profile.coefficients(problem.scopes))
    return float(found.step_time_s[0])


def quiet(_: Problem) -> float:
    return _QUIET


def as_modelled(_: Problem) -> float:
    return 1.0


def slower_with_scale(problem: Problem) -> float:
    """Five percent a doubling beyond 64 chips."""
    return float(1.05 ** np.log2(problem.cluster.num_chips / 64))


def worlds(profile: Profile) -> dict[str, World]:
    def expected(problem: Problem) -> float:
        return step_time_noise(profile, problem)

    return {
        "as expected": World(expected, as_modelled),
        "quiet": World(quiet, as_modelled),
        "another physics": World(expected, slower_with_scale),
    }


def covered(fleet: Fleet, count: int, seed: int, world: World) -> Array:
    """Of the terms that the reports identify, whether the truth lies in the interval."""
    generator = np.random.default_rng((seed, count))
    truth = fleet.truth(generator)
    fit = time_fit(
        fleet.profile,
        with_limited_sources(fleet.reports(truth, count, generator, world)),
        fleet.posterior,
        new_fleet=True,
    )
    found, _ = apply_estimate(fleet.profile, fit, fit.solve())
    inside = []
    for term in fit.terms_in_scope:
        after = found.by_key[term.key]
        if after.spread < _IDENTIFIED * term.spread:
            inside.append(abs(after.mean - truth.by_key[term.key].mean) <= Z80 * after.spread)
    return np.array(inside, dtype=bool)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    fleet, result = Fleet.shipped(), dict[str, dict[str, float]]()
    for name, world in worlds(fleet.profile).items():
        result[name] = {}
        for count in REPORTS:
            pooled = np.concatenate(
                [covered(fleet, count, seed, world) for seed in range(asked.seeds)]
            )
            result[name][str(count)] = float(pooled.mean())
            print(
                f"{name:16s}{count:5d} reports: {pooled.mean():6.1%} of {len(pooled)} identified"
                " terms",
                flush=True,
            )
    if asked.json:
        print(json.dumps(result))
    if asked.write:
        rows = [[name, *(f"{share:.1%}" for share in of.values())] for name, of in result.items()]
        text = pages.table(["fleet", *(f"{count} reports" for count in REPORTS)], rows)
        command = f"python -m tests.benchmarks.coverage --seeds {asked.seeds} --write"
        pages.write_between_markers("accuracy.md", "coverage", text, command)


if __name__ == "__main__":
    main()
