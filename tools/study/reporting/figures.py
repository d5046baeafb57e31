# SPDX-License-Identifier: Apache-2.0
"""The figures, as SVG files that print as they are, and for the page with its colours of light and dark."""

from __future__ import annotations

import io
import re
import textwrap

import matplotlib

matplotlib.use("svg")
# pylint: disable=wrong-import-position
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from ..model import Factor, Response, Study
from .analysis import LostShares, Variance, levels, varied
from .estimates import Level, compare, zeros

# Okabe and Ito's, distinct also for the colour-blind, on white and on black.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a"]
# Lines and text, which the page shows in the colour of its text.
INK = "#010203"
WIDTH = 9.0
PANELS = 3
MOST_BOXES = 120
STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.2,
    "grid.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
}


def draw(study: Study, table: pd.DataFrame, response: Response, variance: Variance | None) -> dict[str, str]:
    """The figures of a response, by name: SVG texts."""
    with plt.rc_context(STYLE):
        figures = {"main-effects": effects_figure(study, table, response)}
        if interactions := interactions_figure(study, table, response, variance):
            figures["interactions"] = interactions
        figures["boxes"] = boxes_figure(study, table, response)
        return {name: svg(figure, f"{response.name}-{name}") for name, figure in figures.items()}


def svg(figure: Figure, name: str) -> str:
    """The SVG text of a figure. Equal data give an equal text."""
    with plt.rc_context({"svg.hashsalt": name}):
        file = io.StringIO()
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return file.getvalue()


def inline(text: str, name: str) -> str:
    """An SVG text to put into a page: its ids are unique there, its ink is the text's colour, its width the page's."""
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'^<svg([^>]*?) height="[^"]*"', r"<svg\1", text, count=1)
    text = re.sub(r'^<svg([^>]*?) width="([\d.]+)pt"', r'<svg\1 style="width:\2pt" role="img"', text, count=1)
    return text.replace(INK, "currentColor")


def label(response: Response) -> str:
    """Such as: throughput [Mbit/s]."""
    return f"{response.name.replace('_', ' ')} [{response.unit}]" if response.unit else response.name.replace("_", " ")


def grid(count: int, height: float = 2.6) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of three."""
    rows, columns = -(-count // PANELS), min(count, PANELS)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH * columns / PANELS, height * rows), squeeze=False)
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_axis_off()
    return figure, flat[:count]


def scale(axis: Axes, response: Response, along: str = "y") -> None:
    """The response's scale on an axis."""
    ruler = axis.yaxis if along == "y" else axis.xaxis
    if response.scale == "log":
        (axis.set_yscale if along == "y" else axis.set_xscale)("log")
        ruler.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ruler.set_minor_locator(NullLocator())
    elif along == "y":
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    # Such as 20 k and 1.5 M.
    ruler.set_major_formatter(EngFormatter())


def effects_figure(study: Study, table: pd.DataFrame, response: Response) -> Figure:
    """A panel for each factor: the marginal mean of each level, with its interval or range."""
    effects = {name: compare(study, table, response, [name]) for name in varied(study, table)}
    shown = {name: found for name, found in effects.items() if found}
    figure, axes = grid(max(1, len(shown)))
    for axis, (name, found) in zip(axes, shown.items()):
        middle = [level.mean for level in found.levels.values()]
        spreads = [level.spread for level in found.levels.values()]
        errors = [
            [mean - spread.low if spread else 0 for mean, spread in zip(middle, spreads)],
            [spread.high - mean if spread else 0 for mean, spread in zip(middle, spreads)],
        ]
        axis.errorbar(range(len(middle)), middle, yerr=np.maximum(errors, 0), marker="o", capsize=4, color=COLOURS[0], linewidth=1.4)
        for index, level in enumerate(found.levels.values()):
            say_zeros(axis, index, level)
        ticks(axis, [key[0] for key in found.levels])
        axis.set_title(headline(name, found.within), fontsize=10)
        axis.set_xlabel(wrapped(axis_label(study.factor(name))), fontsize=8)
        axis.set_ylabel(label(response))
        scale(axis, response)
    figure.tight_layout()
    return figure


def headline(name: str, within: str) -> str:
    """A panel's title: what it compares, and for which levels of the other factors, if not for all."""
    name = name.replace("_", " ")
    return f"{name}\n({within})" if within else name


def say_zeros(axis: Axes, index: float, level: Level) -> None:
    """Writes at a level how many of its runs measured 0."""
    if level.zeros:
        axis.annotate(f"0 in {level.zeros} of {level.runs}", (index, level.mean), (0, 5), textcoords="offset points", ha="center", fontsize=6)


def ticks(axis: Axes, names: list[str]) -> None:
    """The levels on the horizontal axis; aslant where they are long."""
    is_long = sum(map(len, names)) > 24
    axis.set_xticks(range(len(names)), names, rotation=30 if is_long else 0, ha="right" if is_long else "center")
    axis.set_xlim(-0.4, len(names) - 0.6)


def interactions_figure(study: Study, table: pd.DataFrame, response: Response, variance: Variance | None) -> Figure | None:
    """The six largest interactions of two factors: marginal means, a line for each level of the second."""
    if variance is None:
        return None
    pairs = []
    for name in [effect.name for effect in variance.effects if " × " in effect.name][:6]:
        # The factor with more levels lies along the axis.
        pair = sorted(name.split(" × "), key=lambda one: -table[one].nunique())
        if found := compare(study, table, response, pair):
            pairs.append((found, pair))
    if not pairs:
        return None
    figure, axes = grid(len(pairs), 3.0)
    for axis, (found, (along, line)) in zip(axes, pairs):
        names = levels(study, table, along)
        for colour, level in zip(COLOURS * 3, levels(study, table, line)):
            points = {index: found.levels[name, level] for index, name in enumerate(names) if (name, level) in found.levels}
            # A gap where a pair was not measured.
            means = [points[index].mean if index in points else np.nan for index in range(len(names))]
            axis.plot(range(len(names)), means, marker="o", color=colour, label=level, linewidth=1.4)
            for index, point in points.items():
                say_zeros(axis, index, point)
        ticks(axis, names)
        axis.legend(title=wrapped(axis_label(study.factor(line)), 24), fontsize=7, title_fontsize=8)
        axis.set_title(headline(f"{along} × {line}", found.within), fontsize=10)
        axis.set_xlabel(wrapped(axis_label(study.factor(along))), fontsize=8)
        axis.set_ylabel(label(response))
        scale(axis, response)
    figure.tight_layout()
    return figure


def boxes_figure(study: Study, table: pd.DataFrame, response: Response) -> Figure:
    """A box of each combination, coloured by the first factor. Leaves out the last factors while there are more than
    `MOST_BOXES`.
    """
    names = varied(study, table) or [study.factors[0].name]
    while len(names) > 1 and table.groupby(names).ngroups > MOST_BOXES:
        names.pop()
    order = {name: {level: index for index, level in enumerate(levels(study, table, name))} for name in names}
    groups = sorted(table.groupby(names if len(names) > 1 else names[0]), key=lambda pair: [order[n][level] for n, level in zip(names, as_tuple(pair[0]))])
    figure, axis = plt.subplots(figsize=(WIDTH, 0.8 + 0.2 * len(groups)))
    # A 0 has no place on a logarithmic axis: it is written at the box.
    data = [group.loc[group["value"] > 0, "value"] if response.scale == "log" else group["value"] for _, group in groups]
    boxes = axis.boxplot(data, vert=False, widths=0.6, patch_artist=True, medianprops={"color": INK}, flierprops={"markersize": 3})
    for box, (key, _) in zip(boxes["boxes"], groups):
        box.set_facecolor(COLOURS[order[names[0]][as_tuple(key)[0]] % len(COLOURS)])
        box.set_edgecolor(INK)
    for part in ("whiskers", "caps"):
        for line in boxes[part]:
            line.set_color(INK)
    axis.set_yticks(range(1, len(groups) + 1), [" · ".join(as_tuple(key)) for key, _ in groups], fontsize=7)
    axis.invert_yaxis()
    for row, (_, group) in enumerate(groups, 1):
        if response.scale == "log" and (none := zeros(group)):
            axis.annotate(f"0 in {none} of {len(group)}", (0, row), xycoords=("axes fraction", "data"), fontsize=6, va="center")
    axis.set_xlabel(label(response))
    axis.set_ylabel(factors_label(study, names, len(groups)))
    scale(axis, response, "x")
    return figure


def losses(study: Study, shares: LostShares) -> str:
    """Bars of what each place lost in each combination, as an SVG text."""
    with plt.rc_context(STYLE):
        rows = np.array(list(shares.by_combination.values()))
        figure, axis = plt.subplots(figsize=(WIDTH, 0.9 + 0.2 * len(rows)))
        ends = rows.cumsum(axis=1)
        for index, (colour, place) in enumerate(zip(COLOURS * 2, shares.places)):
            left = ends[:, index] - rows[:, index]
            axis.barh(np.arange(len(rows)), rows[:, index], left=left, color=colour, label=place, height=0.7)
        axis.set_yticks(range(len(rows)), [" · ".join(key) for key in shares.by_combination], fontsize=7)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_xlabel("lost packets [share of the packets offered]")
        axis.set_ylabel(factors_label(study, [factor.name for factor in study.factors], len(rows)))
        axis.legend(title="place", fontsize=7, title_fontsize=8)
        return svg(figure, "lost-by-place")


def wrapped(words: str, width: int = 48) -> str:
    """A text in lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(words, width))


def factors_label(study: Study, names: list[str], rows: int) -> str:
    """The factors of a figure of all combinations with their units, in lines as long as it is high."""
    return wrapped(" · ".join(axis_label(study.factor(name)) for name in names), max(24, 3 * rows))


def axis_label(factor: Factor) -> str:
    """Such as: size [bytes]."""
    name = factor.name.replace("_", " ")
    return f"{name} [{factor.unit}]" if factor.unit else name


def as_tuple(key: object) -> tuple[str, ...]:
    """The key of a group, which is no tuple in some releases of pandas for one factor."""
    return key if isinstance(key, tuple) else (str(key),)
