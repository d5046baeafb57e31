# SPDX-License-Identifier: Apache-2.0
"""The folder of a study's results. A run becomes a line of results.csv at once, so that a stopped study resumes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ..design import Run
from ..errors import StudyError
from ..model import Study
from ..reader import COLUMNS
from .command import Measurement
from .fields import lost
from .mlrsearch import LIST


class Results:
    """The results of a study in a folder."""

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self.study = folder, study
        self.path = folder / "results.csv"
        self.factors = [factor.name for factor in study.factors]
        fields = dict.fromkeys(response.name for response in study.responses)
        losses = study.losses.columns if study.losses else ()
        self.columns = [*self.factors, *COLUMNS, *fields, *losses]

    def start(self, identity: dict[str, str], environment: dict[str, str], resume: bool) -> set[tuple[str, ...]]:
        """Prepares the folder; returns the keys of the runs that are there already."""
        record = self.folder / "study.json"
        if resume and self.path.exists() and record.exists():
            before = json.loads(record.read_text(encoding="utf-8"))["identity"]
            if changed := [name for name in identity if before.get(name) != identity[name]]:
                raise StudyError(
                    f"{self.folder}: these results have another {', '.join(changed)}: give the same, or leave --resume out"
                )
            if self.path.read_text(encoding="utf-8").partition("\n")[0] != ",".join(self.columns):
                raise StudyError(f"{self.folder}: another release of netvm wrote these results: leave --resume out")
            return self.keys()
        if self.path.exists():
            kept = self.folder.with_name(self.folder.name + ".previous")
            if kept.exists():
                for old in kept.iterdir():
                    old.unlink()
                kept.rmdir()
            self.folder.rename(kept)
        self.folder.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"identity": identity, "environment": environment}, indent=2) + "\n", encoding="utf-8")
        self.append_line(self.columns)
        return set()

    def keys(self) -> set[tuple[str, ...]]:
        """The runs that are there. A line that a stop cut off is removed."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            self.path.write_bytes(whole)
        rows = csv.DictReader(io.StringIO(whole.decode()))
        return {(*(row[name] for name in self.factors), row["replication"]) for row in rows}

    def append(self, run: Run, status: dict[str, str], measured: Measurement) -> None:
        """Appends a run. The measurement is kept whole in runs.jsonl, too."""
        row = {**run.combination, "replication": run.replication, **status}
        row |= {response.name: measured.get(response.field, "") for response in self.study.responses}
        row |= lost(self.study, measured)
        self.append_trials(run, measured)
        with (self.folder / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "measured": measured}) + "\n")
        self.append_line([row.get(column, "") for column in self.columns])

    def append_trials(self, run: Run, measured: Measurement) -> None:
        """Writes the trials of a search to trials.csv, a line for each."""
        path, trials = self.folder / "trials.csv", measured.get(LIST)
        if not trials:
            return
        with path.open("a", encoding="utf-8") as file:
            lines = csv.writer(file, lineterminator="\n")
            for index, trial in enumerate(trials, 1):
                if not file.tell():
                    lines.writerow([*self.factors, "replication", "trial", *trial])
                lines.writerow([*run.combination.values(), run.replication, index, *trial.values()])

    def append_line(self, values: Sequence[object]) -> None:
        """One write, and on the disk when this returns."""
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(str(value).replace("\n", " | ") for value in values)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line.getvalue())
            file.flush()
            os.fsync(file.fileno())


def identity(study: Study, seed: int, form: str, settings: Sequence[str] = ()) -> dict[str, str]:
    """What must be equal for results to belong together."""
    text = study.path.read_bytes()
    found = {"study file": hashlib.sha256(text).hexdigest()[:16], "seed": str(seed), "length": form}
    return found | ({"settings": ", ".join(settings)} if settings else {})
