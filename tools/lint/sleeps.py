# SPDX-License-Identifier: Apache-2.0
"""Sleeps, and assertions about elapsed time, in tests: python3 tools/lint/sleeps.py SLEEPS TIMES FILE...

A fixed sleep is too short on a loaded machine and too long on all others, and a limit on elapsed time judges the
machine. Tests wait by `netvm_testing::within`; what is left measures time on purpose. There may be at most SLEEPS and
TIMES of them. Without these numbers, a dash each, it lists the files with most."""

import re
import sys

SLEEP = re.compile(r"(?<![.\w])(?<!fn )sleep\(")
TIME = re.compile(r"\bassert[^;]*?\.elapsed\(\)", re.DOTALL)
TEST_MODULE = re.compile(r"^#\[cfg\((?:all\()?test\b.*\]\n(?:#\[.*\n)*(?:pub(?:\(.*\))? )?mod \w+ \{", re.MULTILINE)


def test_code(path: str) -> str:
    """The part of a file that only tests run."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if "/tests/" in path or path.endswith("/tests.rs") or path.startswith("crates/testing/"):
        return text
    module = TEST_MODULE.search(text)
    return text[module.start() :] if module else ""


def main() -> int:
    most_sleeps, most_times, *paths = sys.argv[1:]
    counts = []
    for path in paths:
        code = test_code(path)
        counts.append((len(SLEEP.findall(code)), len(TIME.findall(code)), path))
    status = 0
    for what, most, count in (
        ("sleeps", most_sleeps, sum(sleeps for sleeps, _, _ in counts)),
        ("assertions about elapsed time", most_times, sum(times for _, times, _ in counts)),
    ):
        if most == "-":
            print(f"{count} {what}")
        elif count > int(most):
            print(f"{count} {what} in tests, at most {most}: wait for a condition (netvm_testing::within)")
            status = 1
        elif count < int(most):
            print(f"note: {count} {what} in tests: lower the limit of {most} in tools/lint/lint.sh")
    if most_sleeps == "-":
        for sleeps, times, path in sorted(counts, reverse=True):
            if sleeps + times > 0:
                print(f"{sleeps:4} {times:4} {path}")
    return status


sys.exit(main())
