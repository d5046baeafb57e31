"""The figures, as SVG files that print as they are, and for the page with its colours of light and dark."""

from __future__ import annotations

import io
import re

import matplotlib

matplotlib.use("svg")
# pylint: disable=wrong-import-position
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from ..studyfile import Response, Study
from .analysis import Variance, estimate, levels, main_effects, varied

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
    """A panel for each factor: the median of each level, with its interval."""
    effects = main_effects(study, table)
    figure, axes = grid(max(1, len(effects)))
    for axis, (name, estimates) in zip(axes, effects.items()):
        middle = [one.median for one in estimates.values()]
        errors = [[one.median - one.low for one in estimates.values()], [one.high - one.median for one in estimates.values()]]
        axis.errorbar(range(len(middle)), middle, yerr=errors, marker="o", capsize=4, color=COLOURS[0], linewidth=1.4)
        ticks(axis, list(estimates))
        axis.set_title(name.replace("_", " "), fontsize=10)
        scale(axis, response)
    axes[0].set_ylabel(label(response))
    figure.tight_layout()
    return figure


def ticks(axis: Axes, names: list[str]) -> None:
    """The levels on the horizontal axis; aslant where they are long."""
    is_long = sum(map(len, names)) > 24
    axis.set_xticks(range(len(names)), names, rotation=30 if is_long else 0, ha="right" if is_long else "center")
    axis.set_xlim(-0.4, len(names) - 0.6)


def interactions_figure(study: Study, table: pd.DataFrame, response: Response, variance: Variance | None) -> Figure | None:
    """The six largest interactions of two factors: a line for each level of the second."""
    if variance is None:
        return None
    pairs = [effect.name.split(" × ") for effect in variance.effects if " × " in effect.name][:6]
    if not pairs:
        return None
    figure, axes = grid(len(pairs), 3.0)
    for axis, pair in zip(axes, pairs):
        # The factor with more levels lies along the axis.
        along, line = sorted(pair, key=lambda name: -table[name].nunique())
        names = levels(study, table, along)
        for colour, level in zip(COLOURS * 3, levels(study, table, line)):
            chosen = table[table[line] == level]
            points = [(index, chosen.loc[chosen[along] == name, "value"]) for index, name in enumerate(names)]
            present = [(index, estimate(values).median) for index, values in points if len(values)]
            axis.plot(*zip(*present), marker="o", color=colour, label=level, linewidth=1.4)
        ticks(axis, names)
        axis.legend(title=line.replace("_", " "), fontsize=7, title_fontsize=8)
        axis.set_title(f"{along} × {line}".replace("_", " "), fontsize=10)
        scale(axis, response)
    axes[0].set_ylabel(label(response))
    figure.tight_layout()
    return figure


def boxes_figure(study: Study, table: pd.DataFrame, response: Response) -> Figure:
    """A box of each combination, coloured by the first factor. Leaves out the last factors while there are more than `MOST_BOXES`."""
    names = varied(study, table) or [study.factors[0].name]
    while len(names) > 1 and table.groupby(names).ngroups > MOST_BOXES:
        names.pop()
    order = {name: {level: index for index, level in enumerate(levels(study, table, name))} for name in names}
    groups = sorted(table.groupby(names if len(names) > 1 else names[0]), key=lambda pair: [order[n][level] for n, level in zip(names, as_tuple(pair[0]))])
    figure, axis = plt.subplots(figsize=(WIDTH, 0.8 + 0.2 * len(groups)))
    data = [group["value"] for _, group in groups]
    boxes = axis.boxplot(data, vert=False, widths=0.6, patch_artist=True, medianprops={"color": INK}, flierprops={"markersize": 3})
    for box, (key, _) in zip(boxes["boxes"], groups):
        box.set_facecolor(COLOURS[order[names[0]][as_tuple(key)[0]] % len(COLOURS)])
        box.set_edgecolor(INK)
    for part in ("whiskers", "caps"):
        for line in boxes[part]:
            line.set_color(INK)
    axis.set_yticks(range(1, len(groups) + 1), [" · ".join(as_tuple(key)) for key, _ in groups], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel(label(response))
    axis.set_ylabel(" · ".join(name.replace("_", " ") for name in names))
    scale(axis, response, "x")
    return figure


def as_tuple(key: object) -> tuple[str, ...]:
    """The key of a group, which is no tuple in some releases of pandas for one factor."""
    return key if isinstance(key, tuple) else (str(key),)
