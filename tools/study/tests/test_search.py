# SPDX-License-Identifier: Apache-2.0
"""The search for the highest lossless rate."""

import unittest

from study.errors import StudyError
from study.measuring.search import LIMITED, LOSSLESS, TRIALS, search
from study.model import Search

PLAN = Search(first=1e6, lowest=100, precision=0.02, trials=40)


class Device:
    """Loses what is above its capacity; offers at most `fastest`."""

    def __init__(self, capacity: float, fastest: float = float("inf"), collapse: float = 1.0) -> None:
        self.capacity, self.fastest, self.collapse = capacity, fastest, collapse
        self.asked: list[float] = []

    def __call__(self, rate: float) -> dict[str, float]:
        self.asked.append(rate)
        offered = min(rate, self.fastest)
        is_overload = offered > self.capacity
        received = self.capacity * self.collapse if is_overload else offered
        return {"offered": offered, "received": received, "loss": 1 - received / offered}


class Searches(unittest.TestCase):
    """Against devices of known capacity."""

    def test_capacity_is_found_within_the_precision(self) -> None:
        for capacity in (150.0, 1234.0, 70_000.0, 999_000.0):
            # A device may collapse under overload, so that the first guess is far off.
            for collapse in (1.0, 0.3):
                found = search(PLAN, Device(capacity, collapse=collapse))
                self.assertLessEqual(found[LOSSLESS], capacity)
                self.assertGreaterEqual(found[LOSSLESS], capacity / 1.03)

    def test_the_rest_is_of_the_overload(self) -> None:
        found = search(PLAN, Device(2000))
        self.assertEqual((found["offered"], found["received"]), (1e6, 2000))

    def test_the_first_trial_may_be_lossless(self) -> None:
        device = Device(2e6, fastest=3e5)
        found = search(PLAN, device)
        self.assertEqual((found[LOSSLESS], found[LIMITED], found[TRIALS]), (3e5, 1, 1))

    def test_loss_at_the_lowest_rate_ends_it(self) -> None:
        device = Device(50)
        self.assertEqual(search(PLAN, device)[LOSSLESS], 0)
        self.assertEqual(device.asked[-1], PLAN.lowest)

    def test_trials_are_bounded(self) -> None:
        device = Device(777)
        found = search(Search(first=1e6, lowest=1, precision=1e-9, trials=6), device)
        self.assertEqual((len(device.asked), found[TRIALS]), (6, 6))

    def test_a_missing_field_is_named(self) -> None:
        with self.assertRaisesRegex(StudyError, "no number 'offered', but sent: correct"):
            search(PLAN, lambda rate: {"sent": rate})
