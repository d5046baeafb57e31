# SPDX-License-Identifier: Apache-2.0
"""Whole studies of small commands: results, resuming, failures, and the page."""

import contextlib
import csv
import io
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

from study.__main__ import main
from study.errors import StudyError

STUDY = """
title = "Small & whole"
[design]
replications = 2
[[factor]]
name = "size"
levels = [64, 1518]
[[factor]]
name = "method"
levels = ["a", "b", "c"]
[[exclude]]
when = { size = 64, method = "c" }
reason = "there is < none"
[measure]
command = ["PYTHON", "-c", '''PROGRAM''', "{size}", "{method}"]
timeout = 20
[[response]]
name = "rate"
unit = "pps"
"""
# Fails for (1518, "b") while the file `broken` is there.
PROGRAM = """
import json, os, sys
size, method = int(sys.argv[1]), sys.argv[2]
if (size, method) == (1518, "b") and os.path.exists("BROKEN"):
    print("first\\\\nno such interface", file=sys.stderr)
    sys.exit(3)
print("not a result")
print(json.dumps(dict(rate=1e6 / size * (1 + ord(method)))))
"""


class Whole(unittest.TestCase):
    """Studies from the command line."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out, self.broken = self.folder / "out", self.folder / "broken"
        self.write(PROGRAM.replace("BROKEN", str(self.broken)))

    def write(self, program: str, more: str = "") -> None:
        """Writes the study."""
        text = STUDY.replace("PROGRAM", program.replace("\\\\", "\\")).replace("PYTHON", sys.executable)
        (self.folder / "small.toml").write_text(text + more, encoding="utf-8")

    def run_study(self, *options: str) -> tuple[int, str]:
        """Runs it; returns the status and the output."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            status = main([str(self.folder / "small.toml"), "--out", str(self.out), *options])
        return status, said.getvalue()

    def rows(self) -> list[dict[str, str]]:
        """The results."""
        with (self.out / "results.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_results_and_report(self) -> None:
        status, said = self.run_study()
        self.assertEqual(status, 0, said)
        self.assertIn("[10/10]", said)
        rows = self.rows()
        self.assertEqual(len(rows), 10)
        self.assertEqual({row["rate"] for row in rows if row["size"] == "1518" and row["method"] == "a"}, {str(1e6 / 1518 * 98)})
        page = (self.out / "report.html").read_text(encoding="utf-8")
        for part in ("Small &amp; whole", "there is &lt; none", "main effects".capitalize(), "Analysis of variance", "prefers-color-scheme"):
            self.assertIn(part, page)
        # Self-contained: no file is loaded; and well-formed.
        self.assertFalse(re.findall(r'(?:src|href)="(?!#|http://www.w3.org)[^"]*"', page))
        ids = re.findall(r'\bid="([^"]+)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        HTMLParser().feed(page)
        drawings = sorted(path.name for path in self.out.glob("*.svg"))
        self.assertEqual(drawings, ["rate-boxes.svg", "rate-interactions.svg", "rate-main-effects.svg"])
        for name in drawings:
            self.assertTrue(ElementTree.parse(self.out / name).getroot().tag.endswith("svg"))

    def test_a_stopped_study_goes_on(self) -> None:
        self.run_study()
        path = self.out / "results.csv"
        whole = path.read_text(encoding="utf-8")
        lines = whole.splitlines(keepends=True)
        # Stopped in the middle of the fifth run's line.
        path.write_text("".join(lines[:5]) + lines[5][:7], encoding="utf-8")
        status, said = self.run_study("--resume")
        self.assertEqual(status, 0)
        self.assertIn("10 runs, 4 done", said)
        after = path.read_text(encoding="utf-8").splitlines(keepends=True)
        self.assertEqual(after[:5], lines[:5])
        orders = [[(row["size"], row["method"], row["replication"]) for row in csv.DictReader(some)] for some in (after, lines)]
        self.assertEqual(orders[0], orders[1])
        with self.assertRaisesRegex(StudyError, "another seed"):
            self.run_study("--resume", "--seed", "9")

    def test_replications_are_chosen_and_added_to(self) -> None:
        self.run_study("--replications", "1")
        self.assertEqual(len(self.rows()), 5)
        status, said = self.run_study("--replications", "2", "--resume")
        self.assertEqual((status, len(self.rows())), (0, 10), said)
        with self.assertRaisesRegex(StudyError, "write 1 or more"):
            self.run_study("--replications", "0")

    def test_without_resume_the_results_before_are_kept_aside(self) -> None:
        self.run_study()
        self.run_study("--seed", "3")
        self.assertTrue((self.folder / "out.previous/results.csv").exists())

    def test_a_failed_run_is_recorded_with_the_last_lines(self) -> None:
        self.broken.touch()
        status, said = self.run_study()
        self.assertEqual(status, 1)
        self.assertIn("2 runs failed", said)
        failed = [row for row in self.rows() if row["status"] == "failed"]
        self.assertEqual({(row["size"], row["method"]) for row in failed}, {("1518", "b")})
        for row in failed:
            self.assertIn("ended with status 3", row["error"])
            self.assertIn("no such interface", row["error"])
        page = (self.out / "report.html").read_text(encoding="utf-8")
        self.assertIn("Failed runs", page)
        self.assertIn("8 of 10 runs, 2 failed", page)

    def test_a_command_that_hangs_is_ended(self) -> None:
        self.write("import time; time.sleep(60)", "")
        text = (self.folder / "small.toml").read_text(encoding="utf-8")
        (self.folder / "small.toml").write_text(text.replace("timeout = 20", "timeout = 0.2"), encoding="utf-8")
        status, _ = self.run_study()
        self.assertEqual(status, 1)
        self.assertIn("no result within 0.2 s", self.rows()[0]["error"])

    def test_a_response_that_is_not_measured(self) -> None:
        self.write("import json; print(json.dumps(dict(speed=1)))")
        self.run_study()
        self.assertIn("no number rate, but speed", self.rows()[0]["error"])

    def test_zeros_and_runs_without_an_overload_are_shown(self) -> None:
        self.write("import json, sys; print(json.dumps(dict(rate=0 if sys.argv[2] == 'c' else 5, loss=0)))", 'scale = "log"\n')
        self.run_study()
        self.assertEqual({row["overloaded"] for row in self.rows()}, {"no"})
        page = (self.out / "report.html").read_text(encoding="utf-8")
        for part in ("0 in 2 of 2", "2 of 10 runs measured 0", "†", "not an overload", "range: 5 to 5"):
            self.assertIn(part, page)
        self.assertNotIn("95 % interval", page)
        self.assertIn("0 in 2 of 2", (self.out / "rate-boxes.svg").read_text(encoding="utf-8"))

    def test_a_search_asks_one_command_for_all_rates(self) -> None:
        program = """
import json, sys
for line in sys.stdin:
    rate = float(line)
    print(json.dumps(dict(offered=rate, received=min(rate, 5000), loss=max(0, 1 - 5000 / rate), rate=rate)), flush=True)
"""
        self.write(program, '[[response]]\nname = "lossless"\n[search]\nfirst = 100000\nlowest = 10\n')
        status, said = self.run_study()
        self.assertEqual(status, 0, said)
        for row in self.rows():
            self.assertTrue(4700 < float(row["lossless"]) <= 5000, row)
            self.assertEqual(row["rate"], "100000.0")

    def test_mlrsearch_finds_all_goals_and_keeps_its_trials(self) -> None:
        program = """
import json, sys
for line in sys.stdin:
    rate, seconds = map(float, line.split())
    lost = max(0, rate - 5000) * seconds
    drops = dict(ring=lost / 4, socket=lost * 3 / 4) if lost else dict()
    print(json.dumps(dict(offered=rate, received=min(rate, 5000), loss=lost / rate / seconds, rate=rate, drops=drops, sent=rate * seconds)), flush=True)
"""
        goals = "".join(
            f'[[response]]\nname = "{name}"\n[[goal]]\nname = "{name}"\nloss = {loss}\nseconds = 0.2\nwidth = 0.02\n'
            for name, loss in (("ndr", 0), ("pdr", 0.1))
        )
        losses = '[losses]\nof = "sent"\nplaces = ["ring", "queue", "socket"]\n'
        self.write(program, f"[search]\nfirst = 100000\nlowest = 10\ntrials = 60\n{goals}{losses}")
        status, said = self.run_study("--replications", "1")
        self.assertEqual(status, 0, said)
        for row in self.rows():
            self.assertTrue(4850 < float(row["ndr"]) <= 5000 < 5400 < float(row["pdr"]) / 0.9 <= 5560, row)
            # Of the overload: 95 % were lost.
            self.assertEqual((row["lost_queue"], round(float(row["lost_socket"]), 4)), ("0.0", 0.7125))
        with (self.out / "trials.csv").open(encoding="utf-8") as file:
            trials = list(csv.DictReader(file))
        self.assertEqual((trials[0]["load"], trials[0]["seconds"], trials[0]["trial"]), ("100000.0", "0.2", "1"))
        self.assertEqual({(row["size"], row["method"]) for row in trials}, {(row["size"], row["method"]) for row in self.rows()})
        page = (self.out / "report.html").read_text(encoding="utf-8")
        for part in ("Where packets were lost", "71.25%", "MLRsearch", "lost packets [share of the packets offered]"):
            self.assertIn(part, page)
        self.assertNotIn("<th class=\"n\">queue</th>", page)

    def test_a_place_that_the_study_does_not_know_fails_the_run(self) -> None:
        self.write("import json; print(json.dumps(dict(rate=1, drops=dict(nic=1), sent_packets=2)))", '[losses]\nplaces = ["ring"]\n')
        self.run_study()
        self.assertIn("lost at 'nic', which losses.places lacks", self.rows()[0]["error"])

    def test_a_form_has_a_folder_and_an_estimate_of_its_own(self) -> None:
        more = '[short]\nlevels = { method = ["a"] }\ntakes = 30\n'
        self.write(PROGRAM.replace("BROKEN", str(self.broken)), more)
        status, said = self.run_study("--short")
        self.assertEqual(status, 0, said)
        self.assertIn("2 runs (about 60 s), 0 done", said)
        with self.assertRaisesRegex(StudyError, "another length"):
            self.run_study("--resume", "--quick")
        _, said = self.run_study("--short", "--list")
        self.assertIn("takes about 60 s", said)

    def test_variables_are_set(self) -> None:
        text = STUDY.replace('"{method}"]', '"{method}", "{times}"]\nvariables = { times = 2 }').replace("PYTHON", sys.executable)
        program = "import json, sys; print(json.dumps(dict(rate=int(sys.argv[3]))))"
        (self.folder / "small.toml").write_text(text.replace("PROGRAM", program), encoding="utf-8")
        self.run_study("--replications", "1", "--set", "times=7")
        self.assertEqual({row["rate"] for row in self.rows()}, {"7"})
        self.assertIn("with times = 7", (self.out / "report.html").read_text(encoding="utf-8"))
        with self.assertRaisesRegex(StudyError, "another settings"):
            self.run_study("--replications", "1", "--set", "times=8", "--resume")
        with self.assertRaisesRegex(StudyError, "--set time=8: give NAME=VALUE .* there are times=2"):
            self.run_study("--set", "time=8")

    def test_units_are_on_the_axes(self) -> None:
        path = self.folder / "small.toml"
        path.write_text(path.read_text(encoding="utf-8").replace("levels = [64, 1518]", 'levels = [64, 1518]\nunit = "bytes"'), encoding="utf-8")
        self.run_study()
        for name in ("main-effects", "interactions", "boxes"):
            drawing = (self.out / f"rate-{name}.svg").read_text(encoding="utf-8")
            for part in ("rate [pps]", "size [bytes]"):
                self.assertIn(part, drawing, name)


if __name__ == "__main__":
    unittest.main()
