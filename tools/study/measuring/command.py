# SPDX-License-Identifier: Apache-2.0
"""The command that measures one combination."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

from ..errors import StudyError
from ..model import Level, Study

Measurement = dict[str, Any]

LAST_LINES = 8


def words(study: Study, values: dict[str, Level]) -> list[str]:
    """The command with its placeholders filled."""
    return [word.format_map(values) for word in study.command]


class Command:
    """A running command. It prints a JSON object in a line, and for a search one for each rate on its standard input.
    """

    def __init__(self, arguments: list[str], timeout: float) -> None:
        self.arguments, self.end, self.timeout = arguments, time.monotonic() + timeout, timeout
        self.errors = tempfile.TemporaryFile()
        self.pending = b""
        try:
            self.process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True
            )
        except OSError as error:
            self.errors.close()
            raise StudyError(f"{arguments[0]} does not start: {error.strerror}: correct measure.command") from None

    def __enter__(self) -> Command:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends it: first by the end of its input, so that it removes what it made."""
        try:
            assert self.process.stdin and self.process.stdout
            self.process.stdin.close()
        except OSError:
            pass
        try:
            if kind is not None:
                self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        # What it started and left behind, too; the group lives as long as one of them does.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        self.errors.close()

    def ask(self, rate: float, seconds: float | None = None) -> Measurement:
        """Measures at a rate, for a time if it is given."""
        try:
            assert self.process.stdin
            time_given = "" if seconds is None else f" {seconds:g}"
            self.process.stdin.write(f"{rate:.0f}{time_given}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.failed("ended") from None
        return self.answer()

    def answer(self) -> Measurement:
        """The next JSON object; other lines are skipped."""
        while True:
            line = self.line()
            if not line.startswith(b"{"):
                continue
            try:
                return dict(json.loads(line))
            except ValueError as error:
                raise self.failed(f"printed a line that is not JSON ({error})") from None

    def line(self) -> bytes:
        """The next line of output."""
        assert self.process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.pending:
                if not selector.select(max(0.0, self.end - time.monotonic())):
                    raise self.failed(f"gave no result within {self.timeout:g} s (measure.timeout)")
                part = os.read(self.process.stdout.fileno(), 1 << 16)
                if not part:
                    raise self.failed(f"ended with status {self.process.wait()} without a result")
                self.pending += part
        line, self.pending = self.pending.split(b"\n", 1)
        return line.strip()

    def failed(self, what: str) -> StudyError:
        """An error with the last lines that the command printed."""
        time.sleep(0.05)
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        lines = "".join(f"\n    {line}" for line in said) or "\n    (it said nothing)"
        return StudyError(f"{' '.join(self.arguments)}: {what}. It said:{lines}")
