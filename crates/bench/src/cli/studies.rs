// SPDX-License-Identifier: Apache-2.0
//! Every command of `studies/` is one that this program takes.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser;
use toml::{Table, Value};

use super::Cli;

/// A level of each factor, and the variables.
type Values = BTreeMap<String, String>;

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// A value or a list of values, as texts.
fn texts(value: &Value) -> Vec<String> {
    value.as_array().map_or_else(|| vec![text(value)], |values| values.iter().map(text).collect())
}

fn values(table: Option<&Value>) -> Values {
    let entries = table.and_then(Value::as_table).into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), text(value))).collect()
}

fn tables<'a>(study: &'a Table, name: &str) -> impl Iterator<Item = &'a Table> {
    study.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
}

/// All combinations that are not excluded.
fn combinations(study: &Table) -> Vec<Values> {
    let mut found = vec![Values::new()];
    for factor in tables(study, "factor") {
        let name = text(&factor["name"]);
        let with = |level: &String, one: &Values| {
            one.clone().into_iter().chain([(name.clone(), level.clone())]).collect::<Values>()
        };
        let levels = texts(&factor["levels"]);
        found = found.iter().flat_map(|one| levels.iter().map(|level| with(level, one))).collect();
    }
    let is_excluded = |one: &Values| {
        tables(study, "exclude").any(|exclusion| {
            let when = exclusion["when"].as_table().into_iter().flatten();
            when.into_iter().all(|(name, levels)| texts(levels).contains(&one[name]))
        })
    };
    found.retain(|one| !is_excluded(one));
    found
}

fn check(path: &Path) -> usize {
    let study: Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let command = texts(&study["measure"]["command"]);
    if command.first().is_none_or(|program| program != "{bin}/netvm-bench") {
        return 0;
    }
    let variables = values(study["measure"].get("variables"));
    let forms = ["quick", "short"].map(|form| values(study.get(form).and_then(|form| form.get("variables"))));
    let combinations = combinations(&study);
    for changed in [&Values::new(), &forms[0], &forms[1]] {
        for combination in &combinations {
            // Later values replace earlier ones.
            let variables: Values =
                variables.iter().chain(changed).map(|(k, v)| (k.clone(), v.clone())).collect();
            let fill = |word: &String| {
                let all = variables.iter().chain(combination);
                all.fold(word.clone(), |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
            };
            let words: Vec<String> = command.iter().map(fill).collect();
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{}: {}: {error}", path.display(), words.join(" "));
            }
        }
    }
    combinations.len()
}

#[test]
fn every_command_of_the_studies_is_taken() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let checked: usize = files.map(|path| check(&path)).sum();
    assert!(checked > 500, "{checked}");
}
