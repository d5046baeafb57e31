# SPDX-License-Identifier: Apache-2.0
"""MLRsearch (draft-ietf-bmwg-mlrsearch): the highest loads at which no more than given shares of the packets are lost,
all in one search. The goal with a loss of 0 is the non-drop rate (NDR), one with 0.005 a partial drop rate (PDR).

A load is a lower bound of a goal if the goal's duration cannot pass any more with more than `exceed` of it in trials
that lose too much, and an upper bound if it already has. Trials begin short and far apart; each phase makes them longer
and the interval between the bounds narrower, and measures again what shorter trials left undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..model import Goal, Search
from .command import Measurement
from .fields import number

# Phases of growing durations; each divides the width that is left by two.
PHASES = 3
TRIALS = "trials"
COMPLETE = "search_is_complete"
# The trials of a search, in what it measured.
LIST = "search_trials"


@dataclass(frozen=True)
class Trial:
    """One trial at a load."""

    load: float
    seconds: float
    offered: float
    received: float
    loss: float


def classify(goal: Goal, trials: list[Trial]) -> str:
    """Whether the load of these trials is a "lower" or an "upper" bound, or "undecided" (appendix A of the draft)."""
    full = [trial for trial in trials if trial.seconds >= goal.seconds]
    short = [trial for trial in trials if trial.seconds < goal.seconds]

    def seconds(some: list[Trial], is_good: bool) -> float:
        return sum(trial.seconds for trial in some if (trial.loss <= goal.loss) == is_good)

    # Good short trials outweigh as many bad ones as the goal accepts; beyond that bad ones count.
    balancing = seconds(short, True) * goal.exceed / (1 - goal.exceed)
    bad = seconds(full, False) + max(0.0, seconds(short, False) - balancing)
    good = seconds(full, True)
    whole = max(good + bad, goal.sum)
    accepted = whole * goal.exceed + 1e-9
    if whole - good <= accepted:
        return "lower"
    return "undecided" if bad <= accepted else "upper"


def conditional_throughput(goal: Goal, trials: list[Trial]) -> float:
    """What passes at a lower bound in all trials but the worst ones that the goal accepts (appendix B of the draft)."""
    full = sorted((trial for trial in trials if trial.seconds >= goal.seconds), key=lambda trial: trial.loss)
    left, worst = goal.sum * (1 - goal.exceed), 0.0
    for trial in full:
        if left <= 1e-9:
            break
        left, worst = left - trial.seconds, trial.loss
    offered = sum(trial.offered for trial in full) / len(full)
    return offered * (1 - worst)


class Bounds:
    """What trials at the loads so far say of a goal."""

    def __init__(self, goal: Goal, trials: list[Trial]) -> None:
        self.by_load: dict[float, list[Trial]] = {}
        for trial in trials:
            self.by_load.setdefault(trial.load, []).append(trial)
        found = {load: classify(goal, some) for load, some in self.by_load.items()}
        self.upper = min((load for load, bound in found.items() if bound == "upper"), default=None)
        # Loads above the upper bound say nothing more.
        below = {load: bound for load, bound in found.items() if self.upper is None or load < self.upper}
        self.lower = max((load for load, bound in below.items() if bound == "lower"), default=None)
        self.undecided = [load for load, bound in below.items() if bound == "undecided" and load > (self.lower or 0)]
        self.passed = sum(bound == "lower" for bound in found.values())
        self.failed = sum(bound == "upper" for bound in found.values())


@dataclass(frozen=True)
class Limits:
    """The lowest and the highest load, and where to begin."""

    least: float
    most: float
    hint: float | None = None


def next_load(goal: Goal, bounds: Bounds, limits: Limits) -> float | None:
    """The load of the next trial for a goal, or None if its bounds are near enough."""
    lower, upper, undecided = bounds.lower, bounds.upper, bounds.undecided
    if lower is not None and upper is not None:
        middle = math.sqrt(lower * upper)
        if upper <= lower * (1 + goal.width):
            return None
        return min(undecided, key=lambda load: abs(math.log(load / middle)), default=middle)
    if lower is not None:
        if lower >= limits.most:
            return None
        # Upwards in steps that grow.
        return min(undecided, default=min(limits.most, lower * (1 + goal.width) ** (2**bounds.passed)))
    if upper is not None:
        if upper <= limits.least:
            return None
        # What passed is the guess; where loss goes on, downwards in steps that grow.
        passed = min(trial.received for trial in bounds.by_load[upper]) / (1 - goal.loss)
        down = min(passed * 0.98, upper / (1 + goal.width) ** (2 ** min(bounds.failed - 1, 10)))
        return max(undecided, default=max(limits.least, down))
    return limits.hint if limits.hint in undecided else max(undecided, default=limits.most)


def phases(goal: Goal) -> list[Goal]:
    """The goal with shorter trials and wider bounds, up to itself."""
    found = []
    for phase in range(PHASES - 1):
        seconds = goal.first_seconds * (goal.seconds / goal.first_seconds) ** (phase / (PHASES - 1))
        width = (1 + goal.width) ** (2 ** (PHASES - 1 - phase)) - 1
        found.append(replace(goal, seconds=seconds, sum=seconds, width=width))
    return [*found, goal]


def search(plan: Search, measure: Callable[[float, float], Measurement]) -> Measurement:
    """The measurement at the first rate, an overload, with the highest load of each goal added; 0 where even the lowest
    load had too much loss. `measure` takes a rate and the seconds of the trial.
    """
    trials: list[Trial] = []

    def run(load: float, seconds: float) -> Measurement:
        measured = measure(load, seconds)
        numbers = [number(measured, name) for name in (plan.offered, plan.throughput, plan.loss)]
        trials.append(Trial(load, seconds, *numbers))
        return measured

    result = run(plan.first, max(goal.seconds for goal in plan.goals))
    # The sender may not reach the rate that it was asked for: what it offers is the highest load.
    most = trials[0].offered
    trials[0] = replace(trials[0], load=most)
    complete = True
    for phase in range(PHASES):
        for goal in plan.goals:
            current, hint = phases(goal)[phase], None
            if phase:
                before = Bounds(phases(goal)[phase - 1], trials)
                hint = before.lower or before.upper
            limits = Limits(plan.lowest, most, hint)
            while (load := next_load(current, Bounds(current, trials), limits)) is not None:
                if len(trials) >= plan.trials:
                    complete = False
                    break
                run(load, current.seconds)
    found: Measurement = {TRIALS: len(trials), COMPLETE: int(complete), LIST: [vars(trial) for trial in trials]}
    for goal in plan.goals:
        bounds = Bounds(goal, trials)
        found[goal.name] = conditional_throughput(goal, bounds.by_load[bounds.lower]) if bounds.lower else 0.0
        found[f"{goal.name}_load"], found[f"{goal.name}_upper"] = bounds.lower or 0.0, bounds.upper or 0.0
    return result | found
