#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Module cycles in Rust sources: `module_cycles.py FOLDER...`.

Each folder is a Rust module, as are the files and folders in it. Two of these depend on each other when the code of one
names a path (`use` or inline, from `crate`, `super` or `self`) that leads into the other. `mod.rs` declares the others,
so it does not count; tests do not count either. Prints each cycle as `a -> b -> a` and exits with 1 if there is one.
"""

import re
import sys
from pathlib import Path

PATH = re.compile(r"\b(?:crate|super|self)(?:::(?:[A-Za-z_][A-Za-z0-9_]*|\*|\{))+")
COMMENT = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"')


def module_path(file, source):
    """The module of a file, as names from the crate root."""
    parts = list(file.relative_to(source).with_suffix("").parts)
    if parts[-1] in ("mod", "lib", "main"):
        parts.pop()
    return parts


def group(text, start):
    """The items of the braces that open before `start`, each with what follows, and without nested commas split."""
    depth, item, items = 1, "", []
    for char in text[start:]:
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                break
        if char == "," and depth == 1:
            items.append(item.strip())
            item = ""
        else:
            item += char
    return [entry for entry in [*items, item.strip()] if entry]


def expand(text, start=0, end=None):
    """All paths that begin at `start`: one, or one for each item in braces."""
    match = re.match(r"[A-Za-z0-9_:*]*", text[start:end])
    head = [name for name in match.group(0).split("::") if name]
    after = start + match.end()
    if text[after : after + 1] != "{":
        return [head]
    tails = [tail for item in group(text, after + 1) for tail in expand(item)]
    return [head + tail for tail in tails]


def references(file, source):
    """The module paths that a file names, from the crate root."""
    text = COMMENT.sub("", file.read_text())
    text = re.split(r"#\[cfg\((?:test|all\(test)", text)[0]
    module = module_path(file, source)
    for match in PATH.finditer(text):
        for path in expand(text, match.start()):
            base = list(module)
            while path and path[0] in ("crate", "super", "self"):
                step = path.pop(0)
                base = [] if step == "crate" else base[:-1] if step == "super" else base
            yield base + path


def children(folder, source):
    """The modules in a folder: name -> its files."""
    found = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            found.setdefault(entry.name, []).extend(entry.rglob("*.rs"))
        elif entry.suffix == ".rs" and entry.name not in ("mod.rs", "lib.rs", "main.rs", "tests.rs"):
            found.setdefault(entry.stem, []).append(entry)
    return {name: [f for f in files if f.stem != "tests" and "tests" not in f.parts] for name, files in found.items()}


def edges(folder, source):
    """Which module of a folder names which others."""
    modules = children(folder, source)
    here = list(folder.relative_to(source).parts)
    graph = {name: set() for name in modules}
    for name, files in modules.items():
        for path in (path for file in files for path in references(file, source)):
            if path[: len(here)] == here and len(path) > len(here):
                other = path[len(here)]
                if other in modules and other != name:
                    graph[name].add(other)
    return graph


def cycle(graph):
    """One cycle of a graph, as a list of names, or None."""
    state, stack = {}, []

    def visit(name):
        state[name] = "open"
        stack.append(name)
        for other in sorted(graph[name]):
            if state.get(other) == "open":
                return stack[stack.index(other) :] + [other]
            if other not in state and (found := visit(other)):
                return found
        state[name] = "done"
        stack.pop()
        return None

    for name in sorted(graph):
        if name not in state and (found := visit(name)):
            return found
    return None


def main(folders):
    status = 0
    for top in map(Path, folders):
        source = next(parent for parent in [top, *top.parents] if parent.name == "src")
        for folder in [top, *sorted(p for p in top.rglob("*") if p.is_dir())]:
            if found := cycle(edges(folder, source)):
                print(f"{folder}: {' -> '.join(found)}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
