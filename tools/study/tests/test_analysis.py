# SPDX-License-Identifier: Apache-2.0
"""The statistics, against values worked out by hand and in books."""

import unittest
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from study.reporting import analysis
from study.model import Factor, Level, Response, Search, Study

RESPONSE = Response("y", "y", "")


def study_of(**factors: tuple[Level, ...]) -> Study:
    """A study of these factors."""
    made = tuple(Factor(name, levels) for name, levels in factors.items())
    return Study("test", Path("test.toml"), "Test", "", made, (RESPONSE,), ("true",))


def variance_of(study: Study, rows: Sequence[tuple[object, ...]]) -> analysis.Variance:
    """The analysis of rows of levels and a value."""
    names = [factor.name for factor in study.factors]
    data = pd.DataFrame([dict(zip([*names, "y"], map(str, row)), status="ok") for row in rows])
    found = analysis.variance(study, analysis.usable(study, data, study.responses[0]))
    assert found is not None
    return found


class AllocationOfVariation(unittest.TestCase):
    """Jain's examples."""

    def test_two_by_two_with_replications(self) -> None:
        # Jain (1991), section 18.5, the memory-cache experiment: SSA 5547, SSB 1083, SSAB 300, SSE 102, SST 7032.
        observed = {(0, 0): (15, 18, 12), (1, 0): (45, 48, 51), (0, 1): (25, 28, 19), (1, 1): (75, 75, 81)}
        rows = [(a, b, y) for (a, b), values in observed.items() for y in values]
        found = variance_of(study_of(a=(0, 1), b=(0, 1)), rows)
        squares = {effect.name: round(effect.squares, 6) for effect in [*found.effects, *found.rest]}
        self.assertEqual(squares, {"a": 5547, "b": 1083, "a × b": 300, "error (between replications)": 102})
        self.assertAlmostEqual(sum(effect.share for effect in [*found.effects, *found.rest]), 1)
        self.assertEqual(found.effects[0].name, "a")
        self.assertTrue(found.is_balanced)
        # F = (SSA / 1) / (SSE / 8)
        self.assertAlmostEqual(found.effects[0].f, 5547 / (102 / 8))
        self.assertLess(found.effects[0].p, 1e-6)

    def test_without_replications_the_rest_is_the_error(self) -> None:
        rows = [(a, b, c, 10 * a + b + a * b * c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
        found = variance_of(study_of(a=(0, 1), b=(0, 1), c=(0, 1)), rows)
        self.assertEqual(found.rest[0].freedom, 1)
        self.assertAlmostEqual(sum(effect.share for effect in [*found.effects, *found.rest]), 1)

    def test_excluded_combinations(self) -> None:
        # Additive, and (2, "c") was never measured: type II finds each factor, and no interaction.
        rows = [(a, b, 5 * a + ord(b) + e) for a in (0, 1, 2) for b in "abc" for e in (-0.1, 0.1) if (a, b) != (2, "c")]
        found = variance_of(study_of(a=(0, 1, 2), b=("a", "b", "c")), rows)
        shares = {effect.name: effect.share for effect in found.effects}
        self.assertGreater(shares["a"], 0.8)
        self.assertAlmostEqual(shares["a × b"], 0, places=9)
        self.assertEqual({effect.name: effect.freedom for effect in found.effects}["a × b"], 3)
        self.assertFalse(found.is_balanced)

    def test_the_logarithm_makes_factors_of_effects(self) -> None:
        study = study_of(a=(0, 1), b=(0, 1))
        study = replace(study, responses=(replace(RESPONSE, scale="log"),))
        found = variance_of(study, [(a, b, 10 ** (a + b)) for a in (0, 1) for b in (0, 1) for _ in range(2)])
        self.assertAlmostEqual({effect.name: effect.share for effect in found.effects}["a × b"], 0)

    def test_zeros_stay_among_logarithms(self) -> None:
        study = study_of(method=("a", "b"))
        study = replace(study, responses=(replace(RESPONSE, scale="log"),))
        data = pd.DataFrame([{"method": method, "y": y, "status": "ok"} for method, y in [("a", 0), ("a", 8), ("b", 0), ("b", 0)]])
        table = analysis.usable(study, data, study.responses[0])
        self.assertEqual(list(table["value"]), [0, 8, 0, 0])
        # Half of the least value that was measured.
        self.assertEqual([round(10**y, 6) for y in table["y"]], [4, 8, 4, 4])
        # A search found loss even at its lowest rate.
        searched = replace(study, search=Search(1e6, 1e3), responses=(Response("y", "lossless", "", "log"),))
        table = analysis.usable(searched, data, searched.responses[0])
        self.assertEqual([round(10**y, 6) for y in table["y"]], [1000, 8, 1000, 1000])

    def test_nothing_varies(self) -> None:
        with self.assertRaises(AssertionError):
            variance_of(study_of(a=(0, 1)), [(0, 5), (1, 5), (0, 5)])
