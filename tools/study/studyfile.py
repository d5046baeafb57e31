# SPDX-License-Identifier: Apache-2.0
"""Reads a study from its TOML file, and says what is wrong with the file, where, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from .errors import StudyError
from .forms import FORMS, shorten
from .model import Combination, Exclusion, Factor, Goal, Losses, Response, Search, Study
from .reader import COLUMNS, NUMBER, Reader, check_level, positive


def load(path: Path, form: str = "full") -> Study:
    """Reads a study; in a form of `FORMS`, fewer of its levels."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.toml"))) or "none"
        raise StudyError(f"{path}: {error.strerror}: studies here are: {known}") from None
    reader = Reader(path, text)
    reader.check_keys()
    study = read(reader, path)
    # All are checked in any case, so that none rots.
    forms = {name: shorten(reader, study, name) for name in FORMS}
    return forms.get(form, study)


def read(reader: Reader, path: Path) -> Study:
    """A study from a parsed file."""
    factors = read_factors(reader)
    responses = read_responses(reader)
    losses = read_losses(reader)
    taken = {*COLUMNS, *(factor.name for factor in factors), *(losses.columns if losses else ())}
    for index, response in enumerate(responses):
        if response.name in taken:
            raise reader.fail("response", "name", f"'{response.name}' is there already: choose another, and give field", index)
        taken.add(response.name)
    kind = reader.value("design", "kind", str, default="full")
    if kind not in ("full", "fractional"):
        raise reader.fail("design", "kind", f'must be "full" or "fractional", not "{kind}"')
    study = Study(
        name=path.stem,
        path=path,
        title=reader.value("", "title", str),
        about=reader.value("", "about", str, default=" ").strip(),
        factors=factors,
        responses=responses,
        command=read_strings(reader, "command", None),
        packages=read_strings(reader, "packages", []),
        kind=kind,
        generators=read_generators(reader, factors),
        subset=read_subset(reader, factors),
        exclusions=read_exclusions(reader, factors),
        variables=dict(reader.value("measure", "variables", dict, default={})),
        replications=positive(reader, "design", "replications", 5),
        warm_up=reader.value("design", "warm_up", int, default=0),
        seed=reader.value("design", "seed", int, default=1),
        timeout=float(positive(reader, "measure", "timeout", 300.0)),
        takes=float(reader.value("measure", "takes", NUMBER, default=0.0)),
        search=read_search(reader),
        losses=losses,
    )
    if kind == "fractional" and not (study.generators or study.subset):
        raise reader.fail("design", "kind", "a fractional design needs generators, or a subset of combinations")
    if kind == "full" and (study.generators or study.subset):
        raise reader.fail("design", "kind", 'has generators or a subset: say kind = "fractional"')
    check_placeholders(reader, study)
    return study


def read_factors(reader: Reader) -> tuple[Factor, ...]:
    """The factors."""
    factors: list[Factor] = []
    for index, _ in enumerate(reader.tables("factor")):
        name = reader.value("factor", "name", str, index)
        levels = reader.value("factor", "levels", list, index)
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise reader.fail("factor", "name", f"'{name}': use small letters, digits and _", index)
        if name in COLUMNS:
            raise reader.fail("factor", "name", f"'{name}' is a column of the results: choose another", index)
        if any(factor.name == name for factor in factors):
            raise reader.fail("factor", "name", f"'{name}' is there twice: rename one", index)
        if len(levels) < 2 or len(set(map(str, levels))) < len(levels):
            raise reader.fail("factor", "levels", "needs two different levels or more", index)
        if not all(isinstance(level, (str, int, float)) for level in levels):
            raise reader.fail("factor", "levels", "levels are strings or numbers", index)
        factors.append(Factor(name, tuple(levels), reader.value("factor", "unit", str, index, default="") or ""))
    if not factors:
        raise reader.fail("factor", "", "there is none: add [[factor]] with name and levels")
    return tuple(factors)


def read_responses(reader: Reader) -> tuple[Response, ...]:
    """The responses."""
    responses: list[Response] = []
    for index, _ in enumerate(reader.tables("response")):
        name = reader.value("response", "name", str, index)
        defaults = {"field": name, "unit": " ", "scale": "linear", "better": "more"}
        given = {key: reader.value("response", key, str, index, default) for key, default in defaults.items()}
        response = Response(name, **{**given, "unit": given["unit"].strip()})
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise reader.fail("response", "name", f"'{name}': use small letters, digits and _", index)
        for key, value, known in (("scale", response.scale, ("linear", "log")), ("better", response.better, ("more", "less"))):
            if value not in known:
                raise reader.fail("response", key, f"must be {' or '.join(known)}, not '{value}'", index)
        responses.append(response)
    if not responses:
        raise reader.fail("response", "", "there is none: add [[response]] with name, field and unit")
    return tuple(responses)


def read_exclusions(reader: Reader, factors: tuple[Factor, ...]) -> tuple[Exclusion, ...]:
    """The excluded combinations."""
    exclusions = []
    for index, _ in enumerate(reader.tables("exclude")):
        when = reader.value("exclude", "when", dict, index)
        levels = {name: tuple(value if isinstance(value, list) else [value]) for name, value in when.items()}
        for name, values in levels.items():
            for value in values:
                check_level(reader, factors, ("exclude", "when", index), (name, value))
        exclusions.append(Exclusion(levels, reader.value("exclude", "reason", str, index)))
    return tuple(exclusions)


def read_generators(reader: Reader, factors: tuple[Factor, ...]) -> dict[str, tuple[str, ...]]:
    """The generators of a 2^(k-p) design: each a factor whose sign is the product of others'."""
    generators: dict[str, tuple[str, ...]] = {}
    for name, product in reader.value("design", "generators", dict, default={}).items():
        names = [name, *(product if isinstance(product, list) else [product])]
        for one in names:
            factor = next((factor for factor in factors if factor.name == one), None)
            if factor is None:
                raise reader.fail("design", "generators", f"there is no factor '{one}'")
            if len(factor.levels) != 2:
                raise reader.fail("design", "generators", f"'{one}' has {len(factor.levels)} levels: 2^(k-p) takes two of each")
        if len(names) < 3 or len(set(names)) < len(names):
            raise reader.fail("design", "generators", f"'{name}' must be the product of two other factors or more")
        generators[name] = tuple(names[1:])
    for name, product in generators.items():
        if any(other in generators for other in product):
            raise reader.fail("design", "generators", f"'{name}' is made of a generated factor: use the basic ones")
    if generators:
        for factor in factors:
            if len(factor.levels) != 2:
                raise reader.fail("design", "generators", f"'{factor.name}' has {len(factor.levels)} levels: 2^(k-p) takes two of each")
    return generators


def read_subset(reader: Reader, factors: tuple[Factor, ...]) -> tuple[Combination, ...]:
    """The listed combinations of a fractional design."""
    subset = reader.value("design", "subset", list, default=[])
    for combination in subset:
        for pair in combination.items():
            check_level(reader, factors, ("design", "subset", 0), pair)
        if missing := [factor.name for factor in factors if factor.name not in combination]:
            raise reader.fail("design", "subset", f"{combination} lacks {', '.join(missing)}")
    return tuple(subset)


def read_search(reader: Reader) -> Search | None:
    """The search for the highest lossless rate, if there is one."""
    given = reader.table("search")
    if not given:
        return None
    for key in ("first", "lowest", "precision", "tolerance", "trials"):
        reader.value("search", key, NUMBER, default=1)
    for key in ("first", "lowest"):
        reader.value("search", key, NUMBER)
    search = Search(**given, goals=read_goals(reader))
    if not 0 < search.lowest < search.first:
        raise reader.fail("search", "lowest", "must be above 0 and below first")
    if not 0 < search.precision < 1:
        raise reader.fail("search", "precision", "is a share of the rate, such as 0.05")
    return search


def read_goals(reader: Reader) -> tuple[Goal, ...]:
    """The goals of MLRsearch, if it is the method of the search."""
    goals: list[Goal] = []
    for index, given in enumerate(reader.tables("goal")):
        name = reader.value("goal", "name", str, index)
        for key in ("loss", "exceed", "seconds", "sum", "first_seconds", "width"):
            reader.value("goal", key, NUMBER, index, default=1)
        goal = Goal(**{"sum": given.get("seconds", Goal.seconds), **given})
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or any(goal.name == name for goal in goals):
            raise reader.fail("goal", "name", f"'{name}': use small letters, digits and _, and each name once", index)
        for key in ("loss", "exceed"):
            if not 0 <= getattr(goal, key) < 1:
                raise reader.fail("goal", key, "is a share, from 0 to less than 1", index)
        if not 0 < goal.first_seconds <= goal.seconds <= goal.sum:
            raise reader.fail("goal", "seconds", "must be above 0, at least first_seconds, and at most sum", index)
        if not 0 < goal.width < 1:
            raise reader.fail("goal", "width", "is a share of the rate, such as 0.05", index)
        goals.append(goal)
    return tuple(goals)


def read_losses(reader: Reader) -> Losses | None:
    """Where packets are lost, if the command says so."""
    if not reader.table("losses"):
        return None
    given = {key: reader.value("losses", key, str, default=default) for key, default in (("field", "drops"), ("of", "sent_packets"))}
    return Losses(**given, places=tuple(reader.value("losses", "places", list)))


def read_strings(reader: Reader, key: str, default: list[str] | None) -> tuple[str, ...]:
    """A list of strings in [measure]."""
    value = reader.value("measure", key, list, default=default)
    if not all(isinstance(word, str) for word in value) or (default is None and not value):
        raise reader.fail("measure", key, "must be a list of strings")
    return tuple(value)


def check_placeholders(reader: Reader, study: Study) -> None:
    """Refuses a placeholder in the command that nothing fills."""
    known = {factor.name for factor in study.factors} | set(study.variables) | {"bin"}
    for word in study.command:
        for name in re.findall(r"{(\w+)}", word):
            if name not in known:
                raise reader.fail("measure", "command", f"nothing fills {{{name}}}: known are {', '.join(sorted(known))}")
