# SPDX-License-Identifier: Apache-2.0
"""RFC 2544, section 26.1: the highest rate at which nothing is lost. With goals, MLRsearch's."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..model import Search
from .command import Measurement
from .fields import number

LOSSLESS = "lossless"
TRIALS = "trials"
LIMITED = "lossless_is_limited"


def search(plan: Search, measure: Callable[[float], Measurement]) -> Measurement:
    """The measurement at the first rate, an overload, with the highest lossless rate added.

    After the overload, the throughput there is the guess; then the interval between the highest rate without loss and
    the lowest with loss is halved on a logarithmic scale, down to the precision. A rate is what the command offered,
    which may be less than what it was asked for. 0 says that even the lowest rate had loss.
    """
    result = measure(plan.first)
    offered, trials = number(result, plan.offered), 1
    good, bad, limited = 0.0, offered, False
    if number(result, plan.loss) <= plan.tolerance:
        good, limited = offered, True
    guess = min(number(result, plan.throughput) * 0.95, offered * 0.95)
    while not limited and trials < plan.trials and bad > max(good, plan.lowest) * (1 + plan.precision):
        rate = min(max(guess, plan.lowest), bad)
        measured = measure(rate)
        trials += 1
        if number(measured, plan.loss) <= plan.tolerance:
            good = max(good, number(measured, plan.offered))
        elif rate <= plan.lowest:
            break
        else:
            bad = min(bad, rate)
        # Near the guess while one side is open; halfway afterwards.
        guess = math.sqrt(good * bad) if good else rate / 2
    return result | {LOSSLESS: good, TRIALS: trials, LIMITED: int(limited)}
