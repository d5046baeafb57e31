# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML page without links to other files, in light and dark."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pandas as pd

from .. import design
from ..errors import StudyError
from ..measuring.results import Results
from ..model import Response, Study
from . import analysis, estimates, figures

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --page: #ffffff; --line: #d0d7de; --soft: #f3f5f8; --faint: #59636e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --page: #0d1117; --line: #3d444d; --soft: #161b22; --faint: #9198a1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; }
th { color: var(--faint); font-weight: 600; }
td.n, th.n { text-align: right; }
svg { max-width: 100%; height: auto; display: block; margin: .5rem 0; }
figure { margin: 1rem 0; } figcaption { color: var(--faint); }
.bar { display: inline-block; height: .7rem; background: #0072b2; margin-right: .4rem; vertical-align: middle; }
pre { white-space: pre-wrap; background: var(--soft); padding: .6rem; margin: 0; font-size: 12px; }
details { margin: .6rem 0; } summary { cursor: pointer; }
@media print { body { max-width: none; margin: 0; } }
"""

CAPTIONS = {
    "main-effects": "Main effects: the marginal mean of each level, over those combinations of the other factors that were "
    "measured for all levels of the panel (in brackets, if these are not all). Bars: SPREAD.",
    "interactions": "The largest interactions of two factors, marginal means of the pairs, over those combinations of the other "
    "factors that were measured for all pairs of the panel (in brackets). Parallel lines do not interact.",
    "boxes": "Box plots of the combinations: quartiles, and whiskers to 1.5 times their distance.",
}


def text(value: object) -> str:
    """A value as HTML."""
    return html.escape(str(value))


def number(value: float) -> str:
    """Four digits that mean something."""
    if value != value:  # NaN
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def table_of(heads: list[str], rows: list[list[str]], numbers: int = 0) -> str:
    """A table whose columns after the first `len(heads) - numbers` hold numbers. Cells are HTML."""
    marks = [' class="n"' if index >= len(heads) - numbers else "" for index in range(len(heads))]
    head = "".join(f"<th{mark}>{text(one)}</th>" for mark, one in zip(marks, heads))
    body = "".join("<tr>" + "".join(f"<td{mark}>{one}</td>" for mark, one in zip(marks, row)) + "</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>\n"


def write(study: Study, results: Results) -> Path:
    """Writes report.html and the figures; returns the report's path."""
    try:
        data = pd.read_csv(results.path, dtype=str, keep_default_na=False)
        record = json.loads((results.folder / "study.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{error.filename}: {error.strerror}: run the study first, without --report") from None
    parts = [heading(study, data, record), failures(study, data)]
    for response in study.responses:
        parts.append(section(study, data, response, results.folder))
    parts.append(losses_section(study, data, results.folder))
    parts.append(design_section(study, record))
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(study.title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>\n'
        f"{''.join(parts)}</body></html>\n"
    )
    path = results.folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def heading(study: Study, data: pd.DataFrame, record: dict[str, dict[str, str]]) -> str:
    """The title, what was run, and the machine."""
    counts = dict(data["status"].value_counts())
    planned = len(design.combinations(study)) * study.replications
    said = f"{counts.get('ok', 0)} of {planned} runs, {counts.get('failed', 0)} failed; "
    said += f"{len(design.combinations(study))} combinations, {study.replications} replications."
    load = pd.to_numeric(data["load_average"], errors="coerce").median()
    rows = [[text(name), text(value)] for name, value in {**record["environment"], **record["identity"]}.items()]
    rows.append(["load before a run", f"{load:.1f} (median of the system's load average)"])
    about = "".join(f"<p>{text(part)}</p>" for part in study.about.split("\n\n"))
    return f"<h1>{text(study.title)}</h1>\n{about}<p>{said}</p>\n" + table_of(["environment", ""], rows)


def failures(study: Study, data: pd.DataFrame) -> str:
    """The failed runs."""
    failed = data[data["status"] == "failed"]
    if failed.empty:
        return ""
    names = [factor.name for factor in study.factors]
    rows = [[*(text(row[name]) for name in names), f"<pre>{text(row['error'])}</pre>"] for _, row in failed.iterrows()]
    return f"<h2>Failed runs</h2>\n<p>They are not in the figures.</p>{table_of([*names, 'error'], rows)}"


def section(study: Study, data: pd.DataFrame, response: Response, folder: Path) -> str:
    """What the study found of a response."""
    title = f"<h2>{text(figures.label(response))}</h2>\n"
    table = analysis.usable(study, data, response)
    without = int((data["status"] == "ok").sum()) - len(table)
    if table.empty:
        return f"{title}<p>No run has a value.</p>"
    notes = f"{response.better.capitalize()} is better."
    if response.scale == "log":
        notes += " The analysis is of its logarithm: effects are factors, not differences, and means are geometric."
        if none := estimates.zeros(table):
            notes += (
                f" {none} of {len(table)} runs measured 0; they count as {number(analysis.floor(study, table, response))} in means and in "
                "the analysis of variance, and combinations that have them get no interval."
            )
    if without:
        notes += f" {without} runs without a value are left out."
    variance = analysis.variance(study, table)
    parts = [f"{title}<p>{notes}</p>\n", variance_table(variance)]
    for name, svg in figures.draw(study, table, response, variance).items():
        file = f"{response.name}-{name}"
        (folder / f"{file}.svg").write_text(svg, encoding="utf-8")
        drawing = figures.inline(svg, file)
        if name == "boxes":
            drawing = f"<details open><summary>Box plots</summary>{drawing}</details>"
        caption = CAPTIONS[name].replace("SPREAD", spread_words(study, table))
        parts.append(f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>\n")
    parts.append(medians_table(study, table, response))
    return "".join(parts)


def losses_section(study: Study, data: pd.DataFrame, folder: Path) -> str:
    """Where packets were lost: the mean share of each place in each combination."""
    shares = analysis.lost_shares(study, data)
    if shares is None:
        return ""
    svg = figures.losses(study, shares)
    (folder / "lost-by-place.svg").write_text(svg, encoding="utf-8")
    rows = [
        [*map(text, key), *(f"{share:.2%}" for share in [*of_places, sum(of_places)])]
        for key, of_places in shares.by_combination.items()
    ]
    heads = [*(factor.name for factor in study.factors), *shares.places, "in all"]
    table = table_of(heads, rows, len(shares.places) + 1)
    return (
        "<h2>Where packets were lost</h2>\n<p>The share of the packets that were offered, the mean of the runs.</p>\n"
        f"<figure>{figures.inline(svg, 'lost-by-place')}</figure>\n"
        f"<details><summary>The {len(rows)} combinations</summary>{table}</details>\n"
    )


def variance_table(variance: analysis.Variance | None) -> str:
    """The analysis of variance."""
    if variance is None:
        return "<p>No factor varies, or all runs measured the same: there is no variation to allocate.</p>"
    rows = []
    for effect in [*variance.effects, *variance.rest]:
        bar = f'<span class="bar" style="width:{10 * min(1.0, effect.share):.2f}rem"></span>'
        p = "–" if effect.p != effect.p else "&lt; 0.001" if effect.p < 0.001 else f"{effect.p:.3f}"
        numbers = [number(effect.squares), str(effect.freedom), number(effect.f), p]
        rows.append([text(effect.name), f"{bar}{effect.share:.1%}", *numbers])
    rows.append(["total", "", number(variance.total), "", "", ""])
    note = "" if variance.is_balanced else (
        "<p>The design is not balanced (exclusions, a fraction, or failed runs): squares are of type II, and shares do not add "
        "up to 100 %.</p>"
    )
    heads = ["source", "share of the variation", "sum of squares", "degrees of freedom", "F", "p"]
    return f"<h3>Analysis of variance</h3>\n{table_of(heads, rows, 4)}{note}"


def spread_words(study: Study, table: pd.DataFrame) -> str:
    """What the bars of main effects are."""
    names = [factor.name for factor in study.factors]
    if table.groupby(names).size().min() >= estimates.FEWEST:
        return "95 % confidence intervals, from the error between replications; none where a run measured 0"
    return f"the range of the replications' means (fewer than {estimates.FEWEST} replications give no interval)"


def medians_table(study: Study, table: pd.DataFrame, response: Response) -> str:
    """The median of each combination, and its spread."""
    names = [factor.name for factor in study.factors]
    rows, has_marks = [], False
    for cell in estimates.cells(study, table, response):
        spread, mean = "–", "–"
        if cell.spread:
            spread = f"{cell.spread}: {number(cell.spread.low)} to {number(cell.spread.high)}"
            mean = number(cell.mean) if cell.spread.is_interval else "–"
        median = number(cell.median) + (f" (0 in {cell.zeros} of {cell.runs})" if cell.zeros else "")
        if cell.without_overload:
            median, has_marks = f"{median} †", True
        rows.append([*map(text, cell.key), median, mean, spread, str(cell.runs)])
    rows.sort()
    heads = [*names, "median", "mean", "spread", "runs"]
    note = "<p>† In some runs nothing was lost: the sender offered no more than that, so this is not an overload.</p>" if has_marks else ""
    return f"<details><summary>The {len(rows)} combinations</summary>{table_of(heads, rows, 4)}{note}</details>\n"


def design_section(study: Study, record: dict[str, dict[str, str]]) -> str:
    """The design, so that the study can be repeated."""
    rows = [[text(factor.name), text(", ".join(map(str, factor.levels)) + f" {factor.unit}")] for factor in study.factors]
    parts = [f"<h2>Design</h2>\n{table_of(['factor', 'levels'], rows)}"]
    kind = "Every combination of levels" if study.kind == "full" else "A fraction of the combinations"
    aliases = "; ".join(design.aliases(study))
    parts.append(f"<p>{kind}{f' ({text(aliases)})' if aliases else ''}, in random order (seed {record['identity']['seed']}).</p>")
    if excluded := design.excluded(study):
        rows = []
        for one, count in excluded:
            when = ", ".join(f"{name} = {' or '.join(map(str, levels))}" for name, levels in one.when.items())
            rows.append([text(when), text(one.reason), str(count)])
        parts.append(table_of(["not measured", "why", "combinations"], rows, 1))
    if study.search and study.search.goals:
        goals = "; ".join(
            f"{goal.name}: a loss of at most {goal.loss:g} in all but {goal.exceed:.0%} of {goal.sum:g} s, in trials of {goal.seconds:g} s "
            f"(first ones of {goal.first_seconds:g} s), bounds within {goal.width:.0%}"
            for goal in study.search.goals
        )
        parts.append(
            f"<p>The rates are searched by MLRsearch (draft-ietf-bmwg-mlrsearch), first at {study.search.first:,.0f} a second, with at most "
            f"{study.search.trials} trials. {text(goals)}. trials.csv has all trials.</p>"
        )
    elif study.search:
        parts.append(
            "<p>The highest lossless rate is searched as RFC 2544, section 26.1 says: "
            f"first at {study.search.first:,.0f} a second, then by halving down to {study.search.precision:.0%}; "
            f"lossless is a loss of at most {study.search.tolerance:g}.</p>"
        )
    variables = ", ".join(f"{name} = {value}" for name, value in study.variables.items())
    parts.append(f"<pre>{text(' '.join(study.command))}{f'{chr(10)}with {text(variables)}' if variables else ''}</pre>")
    return "".join(parts)
