# SPDX-License-Identifier: Apache-2.0
"""Numbers of what a command measured."""

from __future__ import annotations

from ..errors import StudyError
from ..model import Study
from .command import Measurement


def number(measured: Measurement, name: str) -> float:
    """A field of a measurement."""
    value = measured.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise StudyError(f"the command printed no number '{name}', but {', '.join(measured) or 'nothing'}: correct [search]")
    return float(value)


def lost(study: Study, measured: Measurement) -> dict[str, float]:
    """The share of the packets that each place lost, by column of the results."""
    losses = study.losses
    if losses is None or not measured:
        return {}
    counts = measured.get(losses.field)
    if not isinstance(counts, dict):
        raise StudyError(f"the command printed no object '{losses.field}', but {', '.join(measured)}: correct losses.field")
    if unknown := sorted(set(counts) - set(losses.places)):
        raise StudyError(f"packets were lost at '{unknown[0]}', which losses.places lacks: add it there")
    of = max(1.0, number(measured, losses.of))
    return {column: counts.get(place, 0) / of for column, place in zip(losses.columns, losses.places)}
