# SPDX-License-Identifier: Apache-2.0
"""The shorter forms of a study, and how long each takes."""

from __future__ import annotations

from dataclasses import replace

from . import design
from .model import Study
from .reader import NUMBER, Reader, check_level, positive

# A form, and its longest duration in seconds.
FORMS = {"quick": 120, "short": 300}


def shorten(reader: Reader, study: Study, form: str) -> Study:
    """The quick or the short form of a study: some of its levels, fewer replications."""
    given = reader.table(form)
    levels = reader.value(form, "levels", dict, default={})
    for name, some in levels.items():
        for level in some if isinstance(some, list) else [some]:
            check_level(reader, study.factors, (form, "levels", 0), (name, level))
    chosen = [
        replace(factor, levels=tuple(levels[factor.name])) if factor.name in levels else factor for factor in study.factors
    ]
    search = study.search
    if search is not None:
        changed = dict(reader.value(form, "search", dict, default={}))
        goals = {key: changed.pop(key) for key in ("seconds", "sum", "first_seconds", "width") if key in changed}
        search = replace(search, **changed, goals=tuple(replace(goal, **goals) for goal in search.goals))
    shorter = replace(
        study,
        factors=tuple(chosen),
        replications=positive(reader, form, "replications", 1),
        variables=study.variables | given.get("variables", {}),
        warm_up=0,
        search=search,
        takes=float(reader.value(form, "takes", NUMBER, default=study.takes)),
    )
    if (limit := FORMS[form]) < estimate(shorter):
        raise reader.fail(form, "", f"takes {estimate(shorter):.0f} s, more than {limit}: leave out levels, or replications")
    return shorter


def estimate(study: Study) -> float:
    """The seconds that a study takes, by what one run does."""
    return study.takes * (len(design.combinations(study)) * study.replications + study.warm_up)
