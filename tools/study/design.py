# SPDX-License-Identifier: Apache-2.0
"""Which combinations of levels are measured, and in which order."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from math import prod

from .errors import StudyError
from .model import Combination, Exclusion, Study


@dataclass(frozen=True)
class Run:
    """A combination to measure, for the nth time from 1; a warm-up is the 0th and is not analysed."""

    combination: Combination
    replication: int

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from other runs, as in the results file."""
        return (*map(str, self.combination.values()), str(self.replication))


def candidates(study: Study) -> list[Combination]:
    """The combinations of the design, before exclusions."""
    names = [factor.name for factor in study.factors]
    if study.subset:
        return [{name: combination[name] for name in names} for combination in study.subset]
    free = [factor for factor in study.factors if factor.name not in study.generators]
    found = []
    for levels in itertools.product(*(factor.levels for factor in free)):
        combination = dict(zip((factor.name for factor in free), levels))
        signs = {factor.name: -1 if level == factor.levels[0] else 1 for factor, level in zip(free, levels)}
        for name, product in study.generators.items():
            sign = prod(signs[other] for other in product)
            combination[name] = study.factor(name).levels[sign > 0]
        found.append({name: combination[name] for name in names})
    return found


def excluded(study: Study) -> list[tuple[Exclusion, int]]:
    """The exclusions, with the number of combinations that each is the first to cover."""
    counts = [0] * len(study.exclusions)
    for combination in candidates(study):
        for index, exclusion in enumerate(study.exclusions):
            if exclusion.covers(combination):
                counts[index] += 1
                break
    return list(zip(study.exclusions, counts))


def combinations(study: Study) -> list[Combination]:
    """The combinations to measure."""
    found = [one for one in candidates(study) if not any(exclusion.covers(one) for exclusion in study.exclusions)]
    if not found:
        raise StudyError(f"{study.path}: every combination is excluded: remove an [[exclude]]")
    return found


def runs(study: Study, seed: int) -> list[Run]:
    """All runs: warm-ups, then each replication of all combinations in a random order of its own.

    So that a drift of the machine falls on all levels alike, and a stopped study has whole replications.
    """
    source, cells = random.Random(seed), combinations(study)
    order = [Run(source.choice(cells), -index) for index in range(study.warm_up)]
    for replication in range(1, study.replications + 1):
        order += [Run(combination, replication) for combination in source.sample(cells, len(cells))]
    return order


def aliases(study: Study) -> list[str]:
    """The defining words of a 2^(k-p) design: effects whose product is the mean."""
    return ["I = " + " × ".join((name, *product)) for name, product in study.generators.items()]
