#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links in Markdown files that lead nowhere: `doc_links.py FILE...`.

Checks relative links to files and to headings (GitHub's anchors). Prints `FILE: TARGET` for each that is broken and
exits with 1 if there is one.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(file):
    """The anchors of a file's headings."""
    text = FENCE.sub("", file.read_text())
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main(names):
    status = 0
    for file in map(Path, names):
        for target in LINK.findall(FENCE.sub("", file.read_text())):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            to = file.parent / path if path else file
            if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
                print(f"{file}: {target}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
