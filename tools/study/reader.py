# SPDX-License-Identifier: Apache-2.0
"""A parsed study file: its values with their types, and the places of its mistakes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from .errors import StudyError
from .model import Factor

TABLES: dict[str, set[str]] = {
    "": {"title", "about", "design", "factor", "exclude", "measure", "search", "goal", "losses", "response", "quick", "short"},
    "design": {"kind", "replications", "warm_up", "seed", "generators", "subset"},
    "factor": {"name", "levels", "unit"},
    "exclude": {"when", "reason"},
    "measure": {"command", "packages", "timeout", "takes", "variables"},
    "search": {"first", "lowest", "precision", "tolerance", "trials", "offered", "loss", "throughput"},
    "response": {"name", "field", "unit", "scale", "better"},
    "goal": {"name", "loss", "exceed", "seconds", "sum", "first_seconds", "width"},
    "losses": {"field", "of", "places"},
    "quick": {"levels", "replications", "variables", "search", "takes"},
    "short": {"levels", "replications", "variables", "search", "takes"},
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


def positive(reader: Reader, table: str, key: str, default: float) -> Any:
    """A number above zero."""
    value = reader.value(table, key, int if isinstance(default, int) else NUMBER, default=default)
    if value <= 0:
        raise reader.fail(table, key, f"must be above 0, not {value}")
    return value
