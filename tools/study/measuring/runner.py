# SPDX-License-Identifier: Apache-2.0
"""Runs a study."""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from ..design import Run
from ..errors import StudyError
from ..model import Study
from . import mlrsearch
from .command import Command, Measurement, words
from .fields import lost
from .results import Results
from .search import search

# The share of packets whose loss a command without a search may report without an overload.
NO_LOSS = 0.001


def measure(study: Study, run: Run, programs: Path) -> Measurement:
    """The measurement of a combination."""
    values = study.variables | run.combination | {"bin": str(programs)}
    with Command(words(study, values), study.timeout) as command:
        measured = ask(study, command)
    missing = [response.field for response in study.responses if not isinstance(measured.get(response.field), (int, float))]
    if missing:
        raise StudyError(f"the command printed no number {', '.join(missing)}, but {', '.join(measured)}: correct [[response]]")
    lost(study, measured)
    return measured


def ask(study: Study, command: Command) -> Measurement:
    """What the command measures: at the rates of the search, if there is one."""
    if study.search is None:
        return command.answer()
    if study.search.goals:
        return mlrsearch.search(study.search, command.ask)
    return search(study.search, command.ask)


def overloaded(study: Study, measured: Measurement) -> str:
    """Whether the (first) trial was an overload: "yes", or "no" if nothing was lost; "" if the command does not say."""
    loss = measured.get(study.search.loss if study.search else "loss")
    if not isinstance(loss, (int, float)):
        return ""
    return "yes" if loss > (study.search.tolerance if study.search else NO_LOSS) else "no"


class Progress:
    """Says what was measured, and how long the rest takes."""

    def __init__(self, runs: list[Run], done: int) -> None:
        self.total, self.done = len(runs), done
        self.took: list[float] = []

    def line(self, run: Run, seconds: float, outcome: str) -> str:
        """A line about a run."""
        self.done += 1
        self.took.append(seconds)
        left = (self.total - self.done) * sum(self.took) / len(self.took)
        levels = " ".join(f"{name}={level}" for name, level in run.combination.items())
        width = len(str(self.total))
        return f"[{self.done:{width}}/{self.total}] {levels}: {outcome} ({seconds:.1f} s; {duration(left)} left)"


def duration(seconds: float) -> str:
    """Such as 42 s, 5 min or 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def summary(study: Study, measured: Measurement) -> str:
    """The responses of a run."""
    return ", ".join(f"{one.name} {measured[one.field]:,.4g} {one.unit}".strip() for one in study.responses)


def run_all(study: Study, runs: list[Run], results: Results, programs: Path, done: set[tuple[str, ...]]) -> int:
    """Runs what is not done yet; returns the number of failures."""
    todo = [run for run in runs if run.key not in done]
    progress, failures = Progress(runs, len(runs) - len(todo)), 0
    for run in todo:
        started, load = datetime.now(timezone.utc), os.getloadavg()[0]
        begin = time.monotonic()
        measured: Measurement = {}
        try:
            measured = measure(study, run, programs)
            outcome, error = summary(study, measured), ""
        except StudyError as problem:
            failures += 1
            outcome, error = f"FAILED: {problem}", str(problem)
        seconds = time.monotonic() - begin
        status = {
            "status": "failed" if error else "warm-up" if run.replication < 1 else "ok",
            "started": started.isoformat(timespec="seconds"),
            "seconds": f"{seconds:.2f}",
            "load_average": f"{load:.2f}",
            "overloaded": overloaded(study, measured),
            "error": error,
        }
        results.append(run, status, measured)
        print(progress.line(run, seconds, outcome), file=sys.stderr, flush=True)
    return failures
