# SPDX-License-Identifier: Apache-2.0
"""MLRsearch: classification of loads by the draft's rules, and whole searches against devices of known behaviour."""

import random
import unittest
from collections.abc import Callable

from study.measuring.mlrsearch import COMPLETE, LIST, TRIALS, Trial, classify, conditional_throughput, search
from study.model import Goal, Search

NDR = Goal("ndr", loss=0.0, exceed=0.5, seconds=1.0, sum=3.0, first_seconds=0.1, width=0.02)
PDR = Goal("pdr", loss=0.005, exceed=0.5, seconds=1.0, sum=3.0, first_seconds=0.1, width=0.02)
PLAN = Search(first=1e6, lowest=100, trials=200, goals=(NDR, PDR))


def trial(loss: float, seconds: float = 1.0, load: float = 1000.0) -> Trial:
    """A trial."""
    return Trial(load, seconds, load, load * (1 - loss), loss)


class Classification(unittest.TestCase):
    """Of loads, by their trials."""

    def check(self, expected: str, *trials: Trial, goal: Goal = NDR) -> None:
        """What the trials say, in any order."""
        for order in (trials, trials[::-1]):
            self.assertEqual(classify(goal, list(order)), expected)

    def test_half_of_the_time_decides(self) -> None:
        self.check("undecided")
        self.check("undecided", trial(0))
        # 2 of 3 s: the rest cannot change it any more.
        self.check("lower", trial(0), trial(0))
        self.check("lower", trial(0), trial(0), trial(0.1))
        self.check("undecided", trial(0), trial(0.1))
        self.check("upper", trial(0.1), trial(0.1))

    def test_without_exceeding_one_loss_decides(self) -> None:
        strict = Goal("ndr", exceed=0, seconds=1, sum=2)
        self.check("undecided", trial(0), goal=strict)
        self.check("lower", trial(0), trial(0), goal=strict)
        self.check("upper", trial(0), trial(0), trial(1e-6), goal=strict)
        # A short trial with loss, too; one without never suffices.
        self.check("upper", trial(1e-6, 0.1), goal=strict)
        self.check("undecided", *[trial(0, 0.1)] * 100, goal=strict)

    def test_the_loss_ratio_of_the_goal_counts(self) -> None:
        self.check("lower", trial(0.005), trial(0.004), goal=PDR)
        self.check("upper", trial(0.0051), trial(0.006), goal=PDR)

    def test_good_short_trials_outweigh_bad_short_ones(self) -> None:
        self.check("upper", *[trial(0.1, 0.9)] * 2)
        self.check("undecided", *[trial(0.1, 0.9)] * 2, *[trial(0, 0.9)] * 2)

    def test_the_conditional_throughput_leaves_out_what_the_goal_accepts(self) -> None:
        # 1.5 s of 3 s count: the best two.
        self.assertEqual(conditional_throughput(PDR, [trial(0.5), trial(0.004), trial(0)]), 1000 * (1 - 0.004))
        self.assertEqual(conditional_throughput(NDR, [trial(0), trial(0)]), 1000)


class Device:
    """A device that loses `share(load)` of the packets; offers at most `fastest`."""

    def __init__(self, share: Callable[[float], float], fastest: float = float("inf")) -> None:
        self.share, self.fastest = share, fastest
        self.asked: list[tuple[float, float]] = []

    def __call__(self, rate: float, seconds: float | None = None) -> dict[str, float]:
        assert seconds is not None
        self.asked.append((rate, seconds))
        offered = min(rate, self.fastest)
        loss = min(1.0, max(0.0, self.share(offered)))
        return {"offered": offered, "received": offered * (1 - loss), "loss": loss}


def above(capacity: float) -> Callable[[float], float]:
    """Loses what is above a capacity."""
    return lambda load: 1 - capacity / load


class Searches(unittest.TestCase):
    """Of all goals at once."""

    def test_both_rates_are_found_within_the_width(self) -> None:
        for capacity in (150.0, 1234.0, 70_000.0, 990_000.0):
            found = search(PLAN, Device(above(capacity)))
            self.assertEqual(found[COMPLETE], 1)
            self.assertLessEqual(found["ndr"], capacity)
            self.assertGreaterEqual(found["ndr"], capacity / 1.021)
            # At this load half a per cent is lost.
            self.assertLessEqual(found["pdr_load"], capacity / 0.995 * 1.0001)
            self.assertGreaterEqual(found["pdr_load"], min(1e6, capacity / 0.995) / 1.021)
            self.assertLess(found[TRIALS], 60)

    def test_a_device_that_always_loses_a_little_has_no_ndr(self) -> None:
        found = search(PLAN, Device(lambda load: max(0.001, 1 - 50_000 / load)))
        self.assertEqual((found["ndr"], found["ndr_upper"]), (0, PLAN.lowest))
        self.assertAlmostEqual(found["pdr"], 50_000, delta=1_500)

    def test_pauses_are_accepted_in_less_than_half_of_the_time(self) -> None:
        source = random.Random(7)
        # One trial in five loses, whatever the load.
        found = search(PLAN, Device(lambda load: 0.02 if source.random() < 0.2 else 1 - 50_000 / load))
        self.assertGreater(found["ndr"], 25_000)
        strict = Search(first=1e6, lowest=100, trials=200, goals=(Goal("ndr", exceed=0, seconds=1, sum=3, width=0.02),))
        self.assertLess(search(strict, Device(lambda load: 0.02 if source.random() < 0.2 else 1 - 50_000 / load))["ndr"], found["ndr"])

    def test_durations_grow_and_bounds_have_full_trials(self) -> None:
        device = Device(above(70_000))
        found = search(PLAN, device)
        later = [seconds for _, seconds in device.asked[1:]]
        self.assertEqual((later[0], later[-1]), (NDR.first_seconds, NDR.seconds))
        self.assertEqual(later, sorted(later))
        for bound in ("ndr_load", "ndr_upper", "pdr_load"):
            full = [one for one in found[LIST] if one["load"] == found[bound] and one["seconds"] >= 1]
            self.assertGreaterEqual(len(full), 2, bound)

    def test_the_first_measurement_is_a_full_overload(self) -> None:
        device = Device(above(2000))
        found = search(PLAN, device)
        self.assertEqual((device.asked[0], found["offered"]), ((1e6, 1.0), 1e6))
        self.assertAlmostEqual(found["received"], 2000)

    def test_a_sender_that_is_too_slow_is_the_limit(self) -> None:
        found = search(PLAN, Device(above(2e6), fastest=3e5))
        self.assertEqual((found["ndr"], found["pdr"], found["ndr_upper"], found[TRIALS]), (3e5, 3e5, 0, 2))

    def test_trials_are_bounded_and_said_to_be(self) -> None:
        device = Device(above(777))
        found = search(Search(first=1e6, lowest=1, trials=6, goals=(NDR, PDR)), device)
        self.assertEqual((len(device.asked), found[TRIALS], found[COMPLETE]), (6, 6, 0))


if __name__ == "__main__":
    unittest.main()
