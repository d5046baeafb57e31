# SPDX-License-Identifier: Apache-2.0
"""Finds comments of more than 120 columns, which no formatter breaks. Rows of tables may be longer.

usage: columns.py FILE...
"""

import re
import sys
from pathlib import Path

LIMIT = 120
COMMENT = {suffix: re.compile(r"\s*//") for suffix in (".rs", ".go")} | {
    suffix: re.compile(r"\s*(//|/\*|\*)") for suffix in (".c", ".h", ".js")
}
ROW = re.compile(r"\s*(//[/!]?|#|\*) \|")


def main(files):
    found = 0
    for file in map(Path, files):
        comment = COMMENT.get(file.suffix, re.compile(r"\s*#"))
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if len(line) > LIMIT and comment.match(line) and not ROW.match(line):
                print(f"{file}:{number}: {len(line)} columns, at most {LIMIT}: break the comment")
                found += 1
    return found > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
