#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Functions of too many arguments in Rust sources: `arguments.py FILE...`.

A function takes at most four arguments besides `self`. A tuple counts as its elements, so it does not hide any. Only a
pair of numbers, such as `span: (u16, u16)`, may be one: anything else has no names where it is used. Foreign functions
are exempt, and property tests, whose arguments are inputs. Prints each such function and exits with 1 if there is one.
"""

import re
import sys
from pathlib import Path

LIMIT = 4
# What a compiler would skip: comments, strings, characters (not lifetimes).
SKIPPED = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | \bb?r(?P<hashes>\#*)".*?"(?P=hashes) | "(?:\\.|[^"\\])*" | '(?:\\[^']+|[^'\\\n])'""",
    re.VERBOSE | re.DOTALL,
)
FUNCTION = re.compile(r"\bfn\s+(\w+)\s*")
# Functions in these have the arguments that others give them.
EXEMPT = re.compile(r'\bextern\s*(?:"_*")?\s*\{|\bproptest!\s*\{')
SELF = re.compile(r"(?:&\s*(?:'\w+\s+)?)?(?:mut\s+)?self\b")
NUMBER = re.compile(r"[iu](?:8|16|32|64|128|size)|f32|f64|bool|char")
BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}


def blanked(text):
    """The text with comments and strings blanked, so that brackets are brackets; each character stays in its place."""

    def blank(match):
        kept = '"' if match[0].endswith('"') else " "
        return kept + re.sub(r"[^\n]", "_" if kept == '"' else " ", match[0][1:-1]) + kept if len(match[0]) > 1 else " "

    return SKIPPED.sub(blank, text)


def closing(text, start):
    """The place of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        char = text[place]
        if char in BRACKETS:
            depth += 1
        elif char in ")]}" or (char == ">" and text[place - 1] not in "-="):
            depth -= 1
            if depth == 0:
                return place
    return len(text)


def split(text, separator=","):
    """The parts of a list, by its outermost separators."""
    parts, start, place = [], 0, 0
    while place < len(text):
        if text[place] in BRACKETS:
            place = closing(text, place)
        elif text[place] == separator and separator * 2 not in text[place - 1 : place + 2]:
            parts.append(text[start:place].strip())
            start = place + 1
        place += 1
    return [part for part in [*parts, text[start:].strip()] if part]


def elements(text):
    """The elements of a tuple, type or pattern; empty for anything else."""
    is_tuple = text.startswith("(") and closing(text, 0) == len(text) - 1
    return split(text[1:-1]) if is_tuple and "," in text else []


def arguments(text, start):
    """The arguments of the function whose name ends at `start`, each as pattern and type; None if it is no list of
    arguments.
    """
    if text[start : start + 1] == "<":
        start = closing(text, start) + 1
    if text[start : start + 1] != "(":
        return None
    listed = split(re.sub(r"#\[[^\]]*\]", "", text[start + 1 : closing(text, start)]))
    listed = [argument for argument in listed if not SELF.match(argument)]
    return [parts for argument in listed if len(parts := split(argument, ":")) == 2]


def complaints(found):
    """What is wrong with a function's arguments."""
    count = 0
    for pattern, kind in found:
        inside = elements(kind)
        count += max(1, len(elements(pattern)), len(inside))
        if not all(NUMBER.fullmatch(element) for element in inside):
            yield f"`{pattern}` is a tuple: take its elements, or make it a struct"
    if count > LIMIT:
        yield f"{count} arguments, at most {LIMIT}: make a struct of those that belong together"


def main(files):
    found = 0
    for file in files:
        text = blanked(Path(file).read_text())
        exempt = [(match.end(), closing(text, match.end() - 1)) for match in EXEMPT.finditer(text)]
        for match in FUNCTION.finditer(text):
            if any(start < match.start() < end for start, end in exempt):
                continue
            line = text.count("\n", 0, match.start()) + 1
            for complaint in complaints(arguments(text, match.end()) or []):
                print(f"{file}:{line}: {match[1]}: {complaint}")
                found += 1
    return found > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
