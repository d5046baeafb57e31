# SPDX-License-Identifier: Apache-2.0
"""The command line: `./dev study NAME`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from . import design, forms, model, studyfile
from .errors import StudyError
from .measuring import environment, runner
from .measuring.results import Results, identity

ROOT = Path(__file__).resolve().parents[2]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The parsed arguments."""
    parser = argparse.ArgumentParser(prog="./dev study", description="Run a study of studies/, and write its report.")
    parser.add_argument("name", metavar="NAME", help="studies/NAME.toml, or the path of a TOML file")
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--quick", action="store_const", dest="form", const="quick", help="[quick]: two minutes, to see that it works")
    lengths.add_argument("--short", action="store_const", dest="form", const="short", help="[short]: five minutes, for a first figure")
    parser.set_defaults(form="full")
    parser.add_argument("--resume", action="store_true", help="go on with the results that are there")
    parser.add_argument("--seed", type=int, help="seed of the random order [default: the file's]")
    parser.add_argument("--replications", type=int, metavar="N", help="runs of each combination [default: the file's]")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another value of a variable, such as accel=kvm")
    parser.add_argument("--out", type=Path, help="folder of the results [default: target/studies/NAME]")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report of what is there")
    parser.add_argument("--list", action="store_true", help="print the combinations and exclusions, measure nothing")
    parser.add_argument("--packages", action="store_true", help="print the cargo packages that the study runs")
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def find(name: str) -> Path:
    """The file of a study."""
    return Path(name) if name.endswith(".toml") else ROOT / "studies" / f"{name}.toml"


def change(study: model.Study, settings: list[str]) -> model.Study:
    """The study with other values of variables, each NAME=VALUE."""
    variables = dict(study.variables)
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in variables or not value:
            known = ", ".join(f"{name}={value}" for name, value in study.variables.items()) or "none"
            raise StudyError(f"--set {setting}: give NAME=VALUE of a variable of the study: there are {known}")
        variables[name] = value
    return dataclasses.replace(study, variables=variables)


def print_design(study: model.Study, seed: int) -> None:
    """Prints what would be measured."""
    for run in design.runs(study, seed):
        print(" ".join(f"{name}={level}" for name, level in run.combination.items()), f"({run.replication})")
    for exclusion, count in design.excluded(study):
        print(f"excluded, {count} combinations: {exclusion.when}: {exclusion.reason}")
    if study.takes:
        print(f"takes about {runner.duration(forms.estimate(study))}")


def main(given: list[str] | None = None) -> int:
    """Runs a study; the status of the process."""
    args = arguments(given)
    path = find(args.name)
    study = studyfile.load(path, args.form)
    if args.replications is not None:
        if args.replications < 1:
            raise StudyError(f"--replications {args.replications}: write 1 or more")
        study = dataclasses.replace(study, replications=args.replications)
    study = change(study, args.set)
    seed = study.seed if args.seed is None else args.seed
    if args.packages:
        print("\n".join(study.packages))
        return 0
    if args.list:
        print_design(study, seed)
        return 0
    # Only now: `--packages` and `--list` need no library.
    from .reporting import page  # pylint: disable=import-outside-toplevel

    folder = (args.out or ROOT / "target/studies" / (study.name + ("" if args.form == "full" else f"-{args.form}"))).resolve()
    results = Results(folder, study)
    failures = 0
    if not args.report:
        runs = design.runs(study, seed)
        done = results.start(identity(study, seed, args.form, args.set), environment.inspect(ROOT), args.resume)
        takes = f" (about {runner.duration(forms.estimate(study))})" if study.takes else ""
        print(f"{study.title}: {len(runs)} runs{takes}, {len(done)} done, seed {seed}, results in {folder}", file=sys.stderr)
        failures = runner.run_all(study, runs, results, args.programs, done)
    report = page.write(study, results)
    print(f"{folder}/results.csv\n{report}")
    if failures:
        print(f"{failures} runs failed: they are in the report", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StudyError as error:
        sys.exit(f"study: {error}")
    except KeyboardInterrupt:
        sys.exit("study: stopped: --resume goes on from here")
