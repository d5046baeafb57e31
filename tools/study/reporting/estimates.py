# SPDX-License-Identifier: Apache-2.0
"""What a report says of a combination, of a level, and of a pair of levels: a figure, and how sure it is.

Levels are compared by marginal means: the mean over combinations of the other factors, each with the same weight. Only
those combinations of the others count for which every compared level was measured; otherwise a level that was left out
where everything is slow would look fast.

An interval of 95 % is one of the mean, from the error between replications of all combinations (Student's t; Jain 1991,
sections 18.4 and 22.5). It needs `FEWEST` replications. With fewer, the range of the measurements is given, and called
so.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import patsy
from scipy import stats

from ..model import Response, Study
from .analysis import fit, levels, varied

CONFIDENCE = 0.95
# Replications of a combination for an interval.
FEWEST = 5


@dataclass(frozen=True)
class Spread:
    """Bounds, and what they are."""

    low: float
    high: float
    is_interval: bool

    def __str__(self) -> str:
        return "95 % interval" if self.is_interval else "range"


@dataclass(frozen=True)
class Cell:
    """A combination: its runs' median, and the mean if there is an interval (of the logarithms, if these are analysed).
    """

    key: tuple[str, ...]
    median: float
    mean: float
    spread: Spread | None
    runs: int
    zeros: int
    without_overload: int


@dataclass(frozen=True)
class Level:
    """A level, or a pair of levels."""

    mean: float
    spread: Spread | None
    runs: int
    zeros: int


@dataclass(frozen=True)
class Comparison:
    """Levels that are compared, and for which levels of the other factors, if not for all."""

    levels: dict[tuple[str, ...], Level]
    within: str


def back(response: Response, value: float) -> float:
    """A value of the analysis in the response's unit."""
    return float(10**value) if response.scale == "log" else float(value)


def zeros(table: pd.DataFrame) -> int:
    """How many runs measured 0."""
    return int((table["value"] == 0).sum())


def error(names: list[str], table: pd.DataFrame) -> tuple[float, int]:
    """Variance between replications, and its degrees of freedom. Combinations with a 0 have no logarithm and are left
    out.
    """
    groups = [table["y"]]
    if names:
        by_cell = table.groupby(names if len(names) > 1 else names[0], sort=False)
        groups = [group["y"] for _, group in by_cell if not zeros(group)]
    squares = sum(float(((y - y.mean()) ** 2).sum()) for y in groups)
    freedom = sum(len(y) - 1 for y in groups)
    return (squares / freedom if freedom else float("nan")), freedom


def interval(response: Response, mean: float, deviation: float, freedom: int) -> Spread | None:
    """The interval of a mean; None where there is no error to take it from."""
    if not freedom or not np.isfinite(deviation):
        return None
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * deviation
    return Spread(back(response, mean - reach), back(response, mean + reach), True)


def cells(study: Study, table: pd.DataFrame, response: Response) -> list[Cell]:
    """Each combination."""
    names = [factor.name for factor in study.factors]
    variance, freedom = error(names, table)
    found = []
    for key, group in table.groupby(names if len(names) > 1 else names[0], sort=False):
        values, mean, none = group["value"], float(group["y"].mean()), zeros(group)
        spread = None
        if len(group) >= FEWEST and not none:
            spread = interval(response, mean, float(np.sqrt(variance / len(group))), freedom)
        elif len(group) > 1:
            spread = Spread(float(values.min()), float(values.max()), False)
        key = key if isinstance(key, tuple) else (key,)
        without_overload = int((group["overloaded"] == "no").sum())
        found.append(Cell(key, float(values.median()), back(response, mean), spread, len(group), none, without_overload))
    return found


def within_all(study: Study, table: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The runs with those levels of the other factors for which everything was measured that is compared, and which
    these are.
    """
    others = [name for name in varied(study, table) if name not in names]
    if not others:
        return table, ""
    compared = table[list(names)].drop_duplicates()
    counts = table[[*others, *names]].drop_duplicates().groupby(others).size()
    complete = counts[counts == len(compared)].index
    chosen = table[pd.MultiIndex.from_frame(table[others]).isin(complete) if len(others) > 1 else table[others[0]].isin(complete)]
    said = []
    for name in others:
        left = levels(study, chosen, name)
        if left != levels(study, table, name):
            said.append(f"{name.replace('_', ' ')} {' or '.join(left)}")
    return chosen, ", ".join(said)


def compare(study: Study, table: pd.DataFrame, response: Response, names: Sequence[str]) -> Comparison | None:
    """The marginal means of the levels of one factor, or of the pairs of levels of two; None if nothing can be
    compared.
    """
    chosen, within = within_all(study, table, names)
    if chosen.empty:
        return additive(study, table, response, names[0]) if len(names) == 1 else None
    all_names = varied(study, table)
    variance, freedom = error(all_names, table)
    found = {}
    for key, group in chosen.groupby(list(names) if len(names) > 1 else names[0], sort=False):
        means = group.groupby(all_names)["y"].agg(["mean", "size"])
        mean = float(means["mean"].mean())
        spread = None
        if means["size"].min() >= FEWEST:
            if not zeros(group):
                deviation = float(np.sqrt(variance * (1 / means["size"]).sum())) / len(means)
                spread = interval(response, mean, deviation, freedom)
        else:
            spread = range_of(group, len(means), response)
        key = key if isinstance(key, tuple) else (key,)
        found[key] = Level(back(response, mean), spread, len(group), zeros(group))
    order = itertools.product(*(levels(study, table, name) for name in names))
    return Comparison({key: found[key] for key in order if key in found}, within)


def range_of(group: pd.DataFrame, combinations: int, response: Response) -> Spread | None:
    """From the least to the greatest mean of a replication, of those that are complete; None with fewer than two."""
    by_run = group.groupby("replication")["y"].agg(["mean", "size"])
    complete = by_run[by_run["size"] == combinations]["mean"]
    if len(complete) < 2:
        return None
    return Spread(back(response, complete.min()), back(response, complete.max()), False)


def additive(study: Study, table: pd.DataFrame, response: Response, name: str) -> Comparison:
    """Marginal means of the model without interactions, for designs in which levels share no combination of the others.
    """
    names = varied(study, table)
    model = fit(table, [(one,) for one in names])
    found = {}
    for level in levels(study, table, name):
        grid = pd.DataFrame(
            list(itertools.product(*([level] if one == name else levels(study, table, one) for one in names))), columns=names
        )
        weights = np.asarray(patsy.build_design_matrices([model.model.data.design_info], grid)[0]).mean(axis=0)
        group = table[table[name] == level]
        mean, deviation = float(weights @ model.params), float(np.sqrt(weights @ model.cov_params() @ weights))
        enough = table.groupby(names).size().min() >= FEWEST and not zeros(table)
        spread = interval(response, mean, deviation, int(model.df_resid)) if enough else None
        found[(level,)] = Level(back(response, mean), spread, len(group), zeros(group))
    return Comparison(found, "by the model without interactions")
