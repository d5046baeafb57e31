# SPDX-License-Identifier: Apache-2.0
"""Finds tests that never run: manifests say `test = false` or `doctest = false` to save building what holds no test.

usage: untested.py MANIFEST...
"""

import re
import sys
import tomllib
from pathlib import Path

UNIT_TEST = re.compile(r"^\s*(#\[test\]|proptest! \{)", re.MULTILINE)
FENCE = re.compile(r"^\s*//[/!] ?```(.*)")
# What rustdoc takes for Rust.
RUST = re.compile(r"(rust|no_run|should_panic|compile_fail|edition\d+|,|\s)*$")


def has_doctest(text):
    inside = False
    for line in text.splitlines():
        if fence := FENCE.match(line):
            if not inside and RUST.match(fence[1]):
                return True
            inside = not inside
    return False


def sources(folder, target, is_lib):
    """The files of a target; those of the library that is beside a program are the library's."""
    files = set((folder / "src").rglob("*.rs"))
    programs = {folder / "src" / "main.rs", *(folder / "src" / "bin").glob("*.rs")}
    if is_lib:
        return files - programs
    own = folder / "src" / "bin" / target["name"]
    if own.is_dir():
        return set(own.rglob("*.rs"))
    path = folder / target.get("path", f"src/bin/{target['name']}.rs")
    alone = path.name == "main.rs" and not (folder / "src" / "lib.rs").exists()
    return files - (programs - {path}) if alone else {path}


def main(manifests):
    found = 0
    for manifest in manifests:
        folder = Path(manifest).parent
        content = tomllib.loads(Path(manifest).read_text())
        targets = [(program, False) for program in content.get("bin", [])]
        if "lib" in content:
            targets.append((content["lib"], True))
        for target, is_lib in targets:
            for file in sorted(sources(folder, target, is_lib)):
                text = file.read_text()
                if not target.get("test", True) and UNIT_TEST.search(text):
                    print(f"{file}: a test that never runs: take `test = false` out of {manifest}")
                    found += 1
                if is_lib and not target.get("doctest", True) and has_doctest(text):
                    print(f"{file}: an example that never runs: take `doctest = false` out of {manifest}")
                    found += 1
    return found > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
