# SPDX-License-Identifier: Apache-2.0
"""Designs: combinations, exclusions and orders."""

import unittest
from collections import Counter
from dataclasses import replace
from pathlib import Path

from study import design
from study.errors import StudyError
from study.model import Combination, Exclusion, Factor, Response, Study


def study_of(*factors: Factor) -> Study:
    """A study of these factors."""
    return Study("test", Path("test.toml"), "Test", "", factors, (Response("y", "y", ""),), ("true",), replications=3)


TWO = tuple(Factor(name, (0, 1)) for name in "abcd")


class Designs(unittest.TestCase):
    """The combinations of a design."""

    def test_full_has_every_combination_once(self) -> None:
        study = study_of(Factor("a", (1, 2, 3)), Factor("b", ("x", "y")))
        found = {tuple(one.values()) for one in design.combinations(study)}
        self.assertEqual(found, {(a, b) for a in (1, 2, 3) for b in "xy"})

    def test_half_fraction_is_balanced_and_orthogonal(self) -> None:
        study = replace(study_of(*TWO), kind="fractional", generators={"d": ("a", "b", "c")})
        found = design.combinations(study)
        self.assertEqual(len(found), 8)
        signs = [{name: 2 * int(level) - 1 for name, level in one.items()} for one in found]
        for one in signs:
            self.assertEqual(one["d"], one["a"] * one["b"] * one["c"])
        for first in "abcd":
            self.assertEqual(sum(one[first] for one in signs), 0)
            for second in "abcd".replace(first, ""):
                self.assertEqual(sum(one[first] * one[second] for one in signs), 0)
        self.assertEqual(design.aliases(study), ["I = d × a × b × c"])

    def test_subset(self) -> None:
        subset: tuple[Combination, ...] = ({"b": 1, "a": 0}, {"a": 1, "b": 0})
        study = replace(study_of(*TWO[:2]), kind="fractional", subset=subset)
        self.assertEqual(design.combinations(study), [{"a": 0, "b": 1}, {"a": 1, "b": 0}])

    def test_exclusions_count_what_they_cover_first(self) -> None:
        exclusions = (Exclusion({"a": (0,)}, "one"), Exclusion({"b": (0, 1)}, "two"))
        study = replace(study_of(*TWO[:2]), exclusions=exclusions[:1])
        self.assertEqual(design.combinations(study), [{"a": 1, "b": 0}, {"a": 1, "b": 1}])
        study = replace(study, exclusions=exclusions)
        self.assertEqual([count for _, count in design.excluded(study)], [2, 2])
        with self.assertRaisesRegex(StudyError, "every combination is excluded"):
            design.combinations(study)


class Orders(unittest.TestCase):
    """The order of the runs."""

    def test_each_replication_is_whole_and_of_its_own_order(self) -> None:
        runs = design.runs(study_of(*TWO), seed=5)
        parts = [runs[start : start + 16] for start in (0, 16, 32)]
        self.assertEqual(len(runs), 48)
        for number, part in enumerate(parts, 1):
            self.assertEqual({run.replication for run in part}, {number})
            self.assertEqual(set(Counter(run.key for run in part).values()), {1})
        orders = [[run.key[:-1] for run in part] for part in parts]
        self.assertNotEqual(orders[0], orders[1])

    def test_a_seed_is_an_order(self) -> None:
        study = study_of(*TWO)
        self.assertEqual(design.runs(study, 1), design.runs(study, 1))
        self.assertNotEqual(design.runs(study, 1), design.runs(study, 2))

    def test_warm_up_comes_first_and_does_not_count(self) -> None:
        runs = design.runs(replace(study_of(*TWO), warm_up=2), seed=1)
        self.assertEqual([run.replication for run in runs[:3]], [0, -1, 1])
        self.assertEqual(len({run.key for run in runs}), 50)
