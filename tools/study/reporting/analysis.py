# SPDX-License-Identifier: Apache-2.0
"""The statistics of a study's results: effects, and the allocation of variation.

The allocation of variation is that of R. Jain, The Art of Computer Systems Performance Analysis (1991), chapters 17 to
23: the sum of squares of each effect as a share of the total.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.formula.api import ols

from ..measuring.search import LOSSLESS
from ..model import Response, Study

def usable(study: Study, results: pd.DataFrame, response: Response) -> pd.DataFrame:
    """The runs with a value, in columns `value` and `y`, which is analysed; factors as text, so that a number is a
    level like any other. A 0 stays: where logarithms are analysed, it counts as `floor`.
    """
    ok = results[results["status"] == "ok"]
    table = ok[[factor.name for factor in study.factors]].astype(str)
    for column in ("replication", "overloaded"):
        table[column] = ok[column] if column in ok else ""
    table["value"] = pd.to_numeric(ok[response.name], errors="coerce")
    table = table.dropna(subset=["value"])
    if response.scale == "log":
        table["y"] = np.log10(table["value"].clip(lower=0).replace(0, floor(study, table, response)))
    else:
        table["y"] = table["value"]
    return table


@dataclass(frozen=True)
class LostShares:
    """The mean share of the packets that each place lost, by combination in the file's order; places that lost none are
    left out.
    """

    places: list[str]
    by_combination: dict[tuple[str, ...], list[float]]


def lost_shares(study: Study, results: pd.DataFrame) -> LostShares | None:
    """Where packets were lost; None if the study has no places, or nothing was lost."""
    ok = results[results["status"] == "ok"]
    if study.losses is None or ok.empty or not set(study.losses.columns) <= set(ok.columns):
        return None
    names = [factor.name for factor in study.factors]
    shares = ok[list(study.losses.columns)].apply(pd.to_numeric, errors="coerce").fillna(0)
    lossy = [(place, column) for place, column in zip(study.losses.places, study.losses.columns) if shares[column].sum() > 0]
    if not lossy:
        return None
    found: dict[tuple[str, ...], list[list[float]]] = {}
    for key, row in zip(ok[names].itertuples(index=False, name=None), shares[[column for _, column in lossy]].to_numpy()):
        found.setdefault(key, []).append(list(row))
    order = {name: {str(level): index for index, level in enumerate(study.factor(name).levels)} for name in names}
    keys = sorted(found, key=lambda key: [order[name][level] for name, level in zip(names, key)])
    return LostShares([place for place, _ in lossy], {key: list(np.mean(found[key], axis=0)) for key in keys})


def floor(study: Study, table: pd.DataFrame, response: Response) -> float:
    """What a 0 counts as among logarithms: the lowest rate of a search, where all was lost; else half of the least
    value.
    """
    if study.search and response.field in (LOSSLESS, *(goal.name for goal in study.search.goals)):
        return study.search.lowest
    above = table.loc[table["value"] > 0, "value"]
    return float(above.min()) / 2 if len(above) else 1.0


def varied(study: Study, table: pd.DataFrame) -> list[str]:
    """The factors with two levels or more in the table."""
    return [factor.name for factor in study.factors if table[factor.name].nunique() > 1]


def levels(study: Study, table: pd.DataFrame, name: str) -> list[str]:
    """The levels of a factor that the table has, in the file's order."""
    present = set(table[name])
    return [str(level) for level in study.factor(name).levels if str(level) in present]


@dataclass(frozen=True)
class Effect:
    """A line of the table of variance."""

    name: str
    squares: float
    freedom: int
    share: float
    f: float = float("nan")
    p: float = float("nan")


@dataclass(frozen=True)
class Variance:
    """The allocation of variation, largest share first, then what the model leaves."""

    effects: list[Effect]
    rest: list[Effect]
    total: float
    is_balanced: bool


def fit(table: pd.DataFrame, terms: list[tuple[str, ...]]) -> Any:
    """A linear model of `y` by factors and products of factors."""
    formula = " + ".join(":".join(f"C({name}, Sum)" for name in term) for term in terms) or "1"
    with warnings.catch_warnings():
        # Excluded combinations make columns that depend on others; statsmodels' pseudo-inverse takes them.
        warnings.simplefilter("ignore")
        return ols(f"y ~ {formula}", table).fit()


def variance(study: Study, table: pd.DataFrame) -> Variance | None:
    """The analysis of variance with all factors and their interactions of two; None without variation.

    Sums of squares are of type II: a term's is what it adds to the model of all terms that do not contain it. In a
    balanced design they add up to the total; exclusions and failures unbalance it.
    """
    names = varied(study, table)
    total = float(((table["y"] - table["y"].mean()) ** 2).sum())
    if not names or len(table) < 3 or total <= 1e-12 * max(1.0, float((table["y"] ** 2).sum())):
        return None
    terms: list[tuple[str, ...]] = [(name,) for name in names]
    terms += itertools.combinations(names, 2)
    full = fit(table, terms)
    within = float(((table["y"] - table.groupby(names)["y"].transform("mean")) ** 2).sum())
    groups = table.groupby(names, sort=False).ngroups
    error_freedom = len(table) - groups
    # The error is that of replications; without any, what the model leaves.
    error, freedom = (within, error_freedom) if error_freedom > 0 else (full.ssr, int(full.df_resid))
    effects = []
    for term in terms:
        without = [other for other in terms if other != term and not set(term) < set(other)]
        bigger, smaller = fit(table, [*without, term]), fit(table, without)
        squares, own = max(0.0, smaller.ssr - bigger.ssr), int(smaller.df_resid - bigger.df_resid)
        if own < 1:
            continue
        f = (squares / own) / (error / freedom) if freedom > 0 and error > 1e-12 * total else float("nan")
        effects.append(Effect(" × ".join(term), squares, own, squares / total, f, float(stats.f.sf(f, own, freedom))))
    effects.sort(key=lambda effect: -effect.share)
    rest = []
    if error_freedom > 0:
        higher, own = max(0.0, full.ssr - within), int(full.df_resid) - error_freedom
        if own > 0:
            rest.append(Effect("interactions of three factors and more", higher, own, higher / total))
        rest.append(Effect("error (between replications)", within, error_freedom, within / total))
    else:
        rest.append(Effect("error, and interactions of three factors and more", full.ssr, int(full.df_resid), full.ssr / total))
    counts = table.groupby(names).size()
    balanced = counts.nunique() == 1 and len(counts) == int(np.prod([table[name].nunique() for name in names]))
    return Variance(effects, rest, total, balanced)
