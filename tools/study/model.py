# SPDX-License-Identifier: Apache-2.0
"""What a study is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

Level = str | int | float
Combination = dict[str, Level]


@dataclass(frozen=True)
class Factor:
    """A factor and its levels."""

    name: str
    levels: tuple[Level, ...]
    unit: str = ""


@dataclass(frozen=True)
class Exclusion:
    """Combinations that are not measured: those whose levels are all among these."""

    when: dict[str, tuple[Level, ...]]
    reason: str

    def covers(self, combination: Combination) -> bool:
        """Whether it excludes a combination."""
        return all(combination[name] in levels for name, levels in self.when.items())


@dataclass(frozen=True)
class Response:
    """A number that a run measures."""

    name: str
    field: str
    unit: str
    scale: str = "linear"
    better: str = "more"


@dataclass(frozen=True)
class Goal:
    """A goal of MLRsearch (draft-ietf-bmwg-mlrsearch, section 4.6): the highest load at which no more than a share is
    lost.
    """

    name: str
    loss: float = 0.0
    exceed: float = 0.5
    seconds: float = 1.0
    sum: float = 1.0
    first_seconds: float = 0.1
    width: float = 0.05


@dataclass(frozen=True)
class Search:
    """The highest rate without loss (RFC 2544, section 26.1), or with `goals` those of MLRsearch. The command takes rates
    on its standard input, and with goals the seconds of the trial after each.
    """

    first: float
    lowest: float
    precision: float = 0.05
    tolerance: float = 0.0
    trials: int = 12
    offered: str = "offered"
    loss: str = "loss"
    throughput: str = "received"
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True)
class Losses:
    """Where packets were lost: an object of counts in the command's answer, and the number of packets."""

    field: str
    of: str
    places: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the results: the share of the packets that each place lost."""
        return tuple(f"lost_{place}" for place in self.places)


@dataclass(frozen=True)
class Study:
    """A study."""

    name: str
    path: Path
    title: str
    about: str
    factors: tuple[Factor, ...]
    responses: tuple[Response, ...]
    command: tuple[str, ...]
    packages: tuple[str, ...] = ()
    kind: str = "full"
    generators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    subset: tuple[Combination, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    variables: dict[str, Level] = field(default_factory=dict)
    replications: int = 5
    warm_up: int = 0
    seed: int = 1
    timeout: float = 300.0
    search: Search | None = None
    losses: Losses | None = None
    takes: float = 0.0

    def factor(self, name: str) -> Factor:
        """A factor by its name."""
        return next(factor for factor in self.factors if factor.name == name)
