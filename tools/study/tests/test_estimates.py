# SPDX-License-Identifier: Apache-2.0
"""Marginal means, intervals and ranges."""

import unittest
from dataclasses import replace

import numpy as np
import pandas as pd
from study.reporting import analysis, estimates
from study.model import Response, Study

from .test_analysis import RESPONSE, study_of

LOG = replace(RESPONSE, scale="log")
# Simulated studies, each with six combinations; the share of their intervals that hold the true mean.
STUDIES = 150
COVERED = (0.925, 0.975)


def table_of(study: Study, rows: list[dict[str, object]], response: Response = RESPONSE) -> pd.DataFrame:
    """The analysed table of rows with levels, replication and y."""
    data = pd.DataFrame([{"status": "ok", "replication": 1, **row} for row in rows])
    return analysis.usable(study, data, response)


def methods(host: dict[str, float], guest: dict[str, float], replications: int = 1) -> pd.DataFrame:
    """Rows of a study whose guests lack a method."""
    rows = [
        {"platform": platform, "method": method, "replication": n, "y": y * (1 + n / 100)}
        for platform, means in (("host", host), ("guest", guest))
        for method, y in means.items()
        for n in range(replications)
    ]
    return table_of(METHODS, rows, LOG)


METHODS = replace(study_of(platform=("host", "guest"), method=("a", "b", "port")), responses=(LOG,))


class MarginalMeans(unittest.TestCase):
    """What is compared with what."""

    def test_a_way_that_ran_on_the_fast_platform_only_does_not_look_fast(self) -> None:
        # On the host all methods are alike; the guest is 20 times slower, and has no `port`.
        table = methods({"a": 100, "b": 100, "port": 100}, {"a": 5, "b": 5})
        found = estimates.compare(METHODS, table, LOG, ["method"])
        assert found is not None
        self.assertEqual({key[0]: round(level.mean, 6) for key, level in found.levels.items()}, {"a": 100, "b": 100, "port": 100})
        self.assertEqual(found.within, "platform host")
        found = estimates.compare(METHODS, table, LOG, ["platform"])
        assert found is not None
        self.assertEqual({key[0]: round(level.mean, 6) for key, level in found.levels.items()}, {"host": 100, "guest": 5})
        self.assertEqual(found.within, "method a or b")

    def test_pairs_are_compared_where_all_pairs_were_measured(self) -> None:
        study = study_of(platform=("host", "guest"), method=("a", "port"), size=(1, 2))
        measured = [("host", "a"), ("host", "port"), ("guest", "a")]
        rows = [
            {"platform": platform, "method": method, "size": size, "y": size * (100 if platform == "host" else 1)}
            for platform, method in measured
            for size in (1, 2)
        ]
        found = estimates.compare(study, table_of(study, rows), RESPONSE, ["method", "size"])
        assert found is not None
        self.assertEqual({key: level.mean for key, level in found.levels.items()}[("a", "2")], 200)
        self.assertEqual(found.within, "platform host")

    def test_a_fraction_takes_the_model(self) -> None:
        # A half of 2^3: no two levels share a combination of the others. The model finds the factors, +1, +10, +100.
        study = study_of(a=(-1, 1), b=(-1, 1), c=(-1, 1))
        rows = [{"a": a, "b": b, "c": a * b, "y": 500 + a + 10 * b + 100 * a * b} for a in (-1, 1) for b in (-1, 1)]
        found = estimates.compare(study, table_of(study, rows), RESPONSE, ["c"])
        assert found is not None
        self.assertEqual([round(level.mean) for level in found.levels.values()], [400, 600])
        self.assertIn("model", found.within)

    def test_zeros_are_counted_and_get_no_interval(self) -> None:
        table = methods({"a": 100, "b": 100, "port": 0}, {"a": 5, "b": 5}, 5)
        cells = {cell.key: cell for cell in estimates.cells(METHODS, table, LOG)}
        port = cells["host", "port"]
        self.assertEqual((port.median, port.zeros, port.runs), (0, 5, 5))
        self.assertEqual(port.spread, estimates.Spread(0, 0, False))
        spread = cells["host", "a"].spread
        assert spread is not None
        self.assertTrue(spread.is_interval)
        found = estimates.compare(METHODS, table, LOG, ["method"])
        assert found is not None
        self.assertEqual((found.levels["port",].zeros, found.levels["port",].spread), (5, None))


class Spreads(unittest.TestCase):
    """Intervals cover what they promise; less than five replications have none."""

    def test_fewer_than_five_replications_give_a_range(self) -> None:
        for replications, is_interval in ((2, False), (4, False), (5, True)):
            table = methods({"a": 100, "b": 120, "port": 90}, {"a": 5, "b": 6}, replications)
            for cell in estimates.cells(METHODS, table, LOG):
                assert cell.spread is not None
                self.assertEqual(cell.spread.is_interval, is_interval)
                self.assertEqual(str(cell.spread), "95 % interval" if is_interval else "range")
            found = estimates.compare(METHODS, table, LOG, ["method"])
            assert found is not None
            for level in found.levels.values():
                assert level.spread is not None
                self.assertEqual(level.spread.is_interval, is_interval)
        one = estimates.cells(METHODS, methods({"a": 1}, {"a": 2}), LOG)
        self.assertEqual([cell.spread for cell in one], [None, None])

    def test_bars_do_not_span_the_levels_of_other_factors(self) -> None:
        # The platforms differ by 20 times, the replications by a percent: so do the bars.
        for replications in (3, 5):
            table = methods({"a": 100, "b": 100, "port": 100}, {"a": 5, "b": 5, "port": 5}, replications)
            found = estimates.compare(METHODS, table, LOG, ["method"])
            assert found is not None
            for level in found.levels.values():
                assert level.spread is not None
                self.assertLess(level.spread.high / level.spread.low, 1.1)

    def test_intervals_of_five_replications_cover_95_percent(self) -> None:
        source = np.random.default_rng(11)
        study = study_of(a=(0, 1), b=(0, 1, 2))
        for response in (RESPONSE, LOG):
            covered, of_levels = [], []
            for _ in range(STUDIES):
                rows = [{"a": a, "b": b, "replication": n, "y": self.draw(source, a, b, response)} for a in (0, 1) for b in (0, 1, 2) for n in range(5)]
                table = table_of(study, rows, response)
                truth = {(str(a), str(b)): 3 + a + b / 2 for a in (0, 1) for b in (0, 1, 2)}
                for cell in estimates.cells(study, table, response):
                    covered.append(self.holds(cell.spread, truth[cell.key], response))
                found = estimates.compare(study, table, response, ["b"])
                assert found is not None
                for key, level in found.levels.items():
                    of_levels.append(self.holds(level.spread, 3.5 + int(key[0]) / 2, response))
            for share in (np.mean(covered), np.mean(of_levels)):
                self.assertTrue(COVERED[0] <= share <= COVERED[1], f"{response.scale}: {share:.3f}")

    @staticmethod
    def draw(source: np.random.Generator, a: int, b: int, response: Response) -> float:
        """A run with errors of a standard deviation of 0.2, of the logarithm where that is analysed."""
        y = 3 + a + b / 2 + source.normal(0, 0.2)
        return float(10**y) if response.scale == "log" else float(y)

    @staticmethod
    def holds(spread: estimates.Spread | None, truth: float, response: Response) -> bool:
        """Whether an interval has the true mean."""
        assert spread is not None and spread.is_interval
        return spread.low <= estimates.back(response, truth) <= spread.high


if __name__ == "__main__":
    unittest.main()
