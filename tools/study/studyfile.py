# SPDX-License-Identifier: Apache-2.0
"""Reads a study from its TOML file, and says what is wrong with the file, where, and what to do."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import StudyError

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
class Search:
    """RFC 2544, section 26.1: the highest rate without loss. The command takes rates on its standard input."""

    first: float
    lowest: float
    precision: float = 0.05
    tolerance: float = 0.0
    trials: int = 12
    offered: str = "offered"
    loss: str = "loss"
    throughput: str = "received"


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

    def factor(self, name: str) -> Factor:
        """A factor by its name."""
        return next(factor for factor in self.factors if factor.name == name)


TABLES: dict[str, set[str]] = {
    "": {"title", "about", "design", "factor", "exclude", "measure", "search", "response", "quick"},
    "design": {"kind", "replications", "warm_up", "seed", "generators", "subset"},
    "factor": {"name", "levels", "unit"},
    "exclude": {"when", "reason"},
    "measure": {"command", "packages", "timeout", "variables"},
    "search": {"first", "lowest", "precision", "tolerance", "trials", "offered", "loss", "throughput"},
    "response": {"name", "field", "unit", "scale", "better"},
    "quick": {"levels", "replications", "variables", "search"},
}


class Reader:
    """A parsed file, with the places of its keys."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"line (\d+)", str(error))
            raise StudyError(f"{path}:{line[1] if line else '?'}: {error}: correct the TOML there") from None

    def fail(self, table: str, key: str, problem: str, index: int = 0) -> StudyError:
        """An error at a key of the `index`th table of this name."""
        place = f"{table}.{key}" if table and key else table or key
        return StudyError(f"{self.path}:{self.line(table, key, index)}: {place}: {problem}")

    def line(self, table: str, key: str, index: int) -> int:
        """The line of a key, or of its table where the key is missing."""
        header = re.compile(r"\s*\[\[?\s*([\w.-]+)\s*\]?\]")
        inside, seen, found = not table, 0, 1
        for number, line in enumerate(self.text.splitlines(), 1):
            if match := header.match(line):
                inside = match[1] == table
                seen += inside
                if inside and seen == index + 1:
                    found = number
            elif inside and seen in (index + 1, 0) and key and re.match(rf"\s*\"?{re.escape(key)}\"?\s*[=.]", line):
                return number
        return found

    def tables(self, name: str) -> list[dict[str, Any]]:
        """The tables of an array."""
        found = self.data.get(name, [])
        if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
            raise self.fail(name, "", f"write it as [[{name}]]")
        return found

    def table(self, name: str) -> dict[str, Any]:
        """A table, empty where there is none."""
        found = self.data.get(name, {})
        if not isinstance(found, dict):
            raise self.fail(name, "", f"write it as [{name}]")
        return found

    def value(self, table: str, key: str, kind: type | tuple[type, ...], index: int = 0, default: Any = None) -> Any:
        """A key's value, checked for its type."""
        within = self.data if not table else self.data.get(table, {})
        within = within[index] if isinstance(within, list) else within
        if key not in within:
            if default is None:
                raise self.fail(table, key, "is missing: add it", index)
            return default
        value = within[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            names = " or ".join(WORDS[one] for one in kinds)
            raise self.fail(table, key, f"must be {names}, not {value!r}", index)
        return value

    def check_keys(self) -> None:
        """Refuses unknown keys: they are mistakes of spelling."""
        for name, known in TABLES.items():
            found = self.data if not name else self.data.get(name, {})
            for index, table in enumerate(found if isinstance(found, list) else [found]):
                for key in set(table) - known if isinstance(table, dict) else ():
                    raise self.fail(name, key, f"there is no such key: {', '.join(sorted(known))} are known", index)


# Columns of the results, which factors and responses share.
COLUMNS = ("replication", "status", "started", "seconds", "load_average", "overloaded", "error")

WORDS = {str: "a string", int: "an integer", float: "a number", list: "a list", dict: "a table"}
NUMBER = (int, float)


def load(path: Path, quick: bool = False) -> Study:
    """Reads a study; with `quick`, its shorter form."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.toml"))) or "none"
        raise StudyError(f"{path}: {error.strerror}: studies here are: {known}") from None
    reader = Reader(path, text)
    reader.check_keys()
    study = read(reader, path)
    # Checked in any case, so that CI's form does not rot.
    shorter = shorten(reader, study)
    return shorter if quick else study


def read(reader: Reader, path: Path) -> Study:
    """A study from a parsed file."""
    factors = read_factors(reader)
    responses = read_responses(reader)
    taken = {*COLUMNS, *(factor.name for factor in factors)}
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
        search=read_search(reader),
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


def check_level(reader: Reader, factors: tuple[Factor, ...], place: tuple[str, str, int], pair: tuple[str, Any]) -> None:
    """Refuses a factor or a level that does not exist."""
    table, key, index = place
    name, level = pair
    factor = next((factor for factor in factors if factor.name == name), None)
    if factor is None:
        known = ", ".join(factor.name for factor in factors)
        raise reader.fail(table, key, f"there is no factor '{name}': factors are {known}", index)
    if level not in factor.levels:
        known = ", ".join(map(str, factor.levels))
        raise reader.fail(table, key, f"'{name}' has no level {level!r}: its levels are {known}", index)


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
    search = Search(**given)
    if not 0 < search.lowest < search.first:
        raise reader.fail("search", "lowest", "must be above 0 and below first")
    if not 0 < search.precision < 1:
        raise reader.fail("search", "precision", "is a share of the rate, such as 0.05")
    return search


def read_strings(reader: Reader, key: str, default: list[str] | None) -> tuple[str, ...]:
    """A list of strings in [measure]."""
    value = reader.value("measure", key, list, default=default)
    if not all(isinstance(word, str) for word in value) or (default is None and not value):
        raise reader.fail("measure", key, "must be a list of strings")
    return tuple(value)


def positive(reader: Reader, table: str, key: str, default: float) -> Any:
    """A number above zero."""
    value = reader.value(table, key, int if isinstance(default, int) else NUMBER, default=default)
    if value <= 0:
        raise reader.fail(table, key, f"must be above 0, not {value}")
    return value


def check_placeholders(reader: Reader, study: Study) -> None:
    """Refuses a placeholder in the command that nothing fills."""
    known = {factor.name for factor in study.factors} | set(study.variables) | {"bin"}
    for word in study.command:
        for name in re.findall(r"{(\w+)}", word):
            if name not in known:
                raise reader.fail("measure", "command", f"nothing fills {{{name}}}: known are {', '.join(sorted(known))}")


def shorten(reader: Reader, study: Study) -> Study:
    """The quick form of a study."""
    quick = reader.table("quick")
    levels = reader.value("quick", "levels", dict, default={})
    for name, some in levels.items():
        for level in some if isinstance(some, list) else [some]:
            check_level(reader, study.factors, ("quick", "levels", 0), (name, level))
    chosen = [
        replace(factor, levels=tuple(levels[factor.name])) if factor.name in levels else factor for factor in study.factors
    ]
    search = study.search
    if search is not None:
        search = replace(search, **reader.value("quick", "search", dict, default={}))
    return replace(
        study,
        factors=tuple(chosen),
        replications=positive(reader, "quick", "replications", 1),
        variables=study.variables | quick.get("variables", {}),
        warm_up=0,
        search=search,
    )
