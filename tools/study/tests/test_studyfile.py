# SPDX-License-Identifier: Apache-2.0
"""Reading study files, and the messages about mistakes."""

import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from study import studyfile
from study.errors import StudyError
from study.forms import FORMS, estimate
from study.model import Goal, Search, Study

GOOD = """
title = "Loss"
[design]
replications = 2
[[factor]]
name = "size"
levels = [64, 1518]
[[factor]]
name = "method"
levels = ["a", "b"]
[[exclude]]
when = { size = 64, method = "b" }
reason = "too small"
[measure]
command = ["measure", "--size={size}", "{method}", "{seconds}"]
variables = { seconds = 2 }
[[response]]
name = "rate"
unit = "pps"
[quick]
levels = { method = ["a"] }
variables = { seconds = 0.1 }
"""


def load(text: str, form: str = "full") -> Study:
    """A study from a text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "loss.toml")
        path.write_text(text, encoding="utf-8")
        return studyfile.load(path, form)


class Reading(unittest.TestCase):
    """Good files."""

    def test_a_study_is_read(self) -> None:
        study = load(GOOD)
        self.assertEqual([factor.levels for factor in study.factors], [(64, 1518), ("a", "b")])
        self.assertEqual((study.replications, study.seed, study.variables), (2, 1, {"seconds": 2}))
        self.assertEqual(study.responses[0].field, "rate")

    def test_quick_takes_some_levels_and_one_replication(self) -> None:
        study = load(GOOD, "quick")
        self.assertEqual((study.factor("method").levels, study.replications), (("a",), 1))
        self.assertEqual(study.variables, {"seconds": 0.1})

    def test_a_form_that_takes_too_long_is_refused(self) -> None:
        text = GOOD.replace("[measure]\n", "[measure]\ntakes = 50\n").replace("[quick]", "[short]\n[quick]")
        self.assertEqual(estimate(load(text)), 300)
        with self.assertRaisesRegex(StudyError, r"loss.toml:\d+: short: takes 600 s, more than 300: leave out levels"):
            load(text.replace("[short]\n", "[short]\nreplications = 4\n"))

    def test_goals_are_read_and_shortened(self) -> None:
        text = GOOD + "search = { seconds = 0.1, sum = 0.2 }\n[search]\nfirst = 9\nlowest = 1\n[[goal]]\nname = \"ndr\"\nseconds = 2\n"
        goal = Goal("ndr", loss=0.0, exceed=0.5, seconds=2, sum=2)
        self.assertEqual(load(text).search, Search(first=9, lowest=1, goals=(goal,)))
        self.assertEqual(load(text, "quick").search, Search(first=9, lowest=1, goals=(replace(goal, seconds=0.1, sum=0.2),)))
        for old, new, problem in (
            ("seconds = 2", "seconds = 2\nsum = 1", "goal.seconds: must be above 0, at least first_seconds, and at most sum"),
            ("seconds = 2", "loss = 1", "goal.loss: is a share"),
            ('name = "ndr"', 'name = "NDR"', "goal.name: 'NDR': use small letters"),
        ):
            with self.assertRaisesRegex(StudyError, problem):
                load(text[::-1].replace(old[::-1], new[::-1], 1)[::-1])

    def test_every_study_here_is_read(self) -> None:
        studies = sorted((Path(__file__).parents[3] / "studies").glob("*.toml"))
        self.assertTrue(studies)
        for path in studies:
            lines = path.read_text(encoding="utf-8").splitlines()
            for form in FORMS:
                self.assertIn(f"[{form}]", lines, f"{path}: add a form of at most {FORMS[form]} s")
            for form in ("full", *FORMS):
                study = studyfile.load(path, form)
                self.assertTrue(study.responses, path)
                self.assertGreater(estimate(study), 0, f"{path}: add measure.takes, the seconds of a run")


class Mistakes(unittest.TestCase):
    """Each names the line and the remedy."""

    def check(self, old: str, new: str, line: int, *words: str) -> None:
        """Replaces a part of the good file, and looks for words in the message."""
        self.assertIn(old, GOOD)
        with self.assertRaises(StudyError) as caught:
            load(GOOD.replace(old, new, 1))
        said = str(caught.exception)
        self.assertIn(f"loss.toml:{line}:", said)
        for word in words:
            self.assertIn(word, said)

    def test_toml(self) -> None:
        self.check('title = "Loss"', 'title = "Loss', 2, "correct the TOML")

    def test_key(self) -> None:
        self.check("replications = 2", "repetitions = 2", 4, "repetitions", "replications")

    def test_missing_key(self) -> None:
        self.check('reason = "too small"\n', "", 11, "exclude.reason", "add it")

    def test_kind_of_value(self) -> None:
        self.check("replications = 2", 'replications = "two"', 4, "an integer")

    def test_second_table(self) -> None:
        self.check('levels = ["a", "b"]', 'levels = ["a"]', 10, "two different levels")

    def test_names_of_columns(self) -> None:
        self.check('name = "size"', 'name = "seconds"', 6, "column of the results")
        self.check('name = "rate"', 'name = "method"', 18, "there already")

    def test_level(self) -> None:
        self.check("size = 64, method", "size = 65, method", 12, "no level 65", "64, 1518")

    def test_factor(self) -> None:
        self.check("size = 64, method", "length = 64, method", 12, "no factor 'length'", "size, method")

    def test_placeholder(self) -> None:
        self.check("{seconds}", "{secs}", 15, "{secs}", "seconds")

    def test_level_of_quick(self) -> None:
        self.check('method = ["a"]', 'method = ["z"]', 21, "no level 'z'")

    def test_generators_need_two_levels(self) -> None:
        text = GOOD.replace("replications = 2", 'kind = "fractional"\ngenerators = { method = ["size", "size"] }')
        with self.assertRaisesRegex(StudyError, r"loss.toml:5: design.generators: 'method' must be the product"):
            load(text)

    def test_file(self) -> None:
        with self.assertRaisesRegex(StudyError, "nothing.toml: No such file.*capture"):
            studyfile.load(Path(__file__).parents[3] / "studies/nothing.toml")

    def test_every_study(self) -> None:
        for path in sorted((Path(__file__).parents[3] / "studies").glob("*.toml")):
            with self.subTest(path.name):
                study = studyfile.load(path)
                self.assertTrue(study.title)


if __name__ == "__main__":
    unittest.main()
