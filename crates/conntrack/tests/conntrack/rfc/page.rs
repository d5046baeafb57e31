// SPDX-License-Identifier: Apache-2.0
//! docs/reference/nat-requirements.md names tests that exist, and all tests of requirements.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of tests in the sources under a folder.
fn tests_under(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_under(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let functions =
                text.split("#[test]").skip(1).filter_map(|it| it.split_once("fn ")?.1.split_once('('));
            names.extend(functions.map(|(name, _)| name.to_owned()));
        }
    }
}

#[test]
fn the_page_names_the_tests_of_requirements() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut tests = BTreeSet::new();
    for folder in ["conntrack/tests", "engine/src/worker/tests", "flowmon/tests"] {
        let folder = crates.join(folder);
        if folder.is_dir() {
            tests_under(&folder, &mut tests);
        }
    }
    let page = crates.parent().unwrap().join("docs/reference/nat-requirements.md");
    let page = fs::read_to_string(page).unwrap();
    // Names of tests are the words in backticks with at least three underscores.
    let named: BTreeSet<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.matches('_').count() > 2 && !word.contains(' '))
        .collect();
    assert!(named.len() > 30);
    for name in &named {
        assert!(tests.contains(*name), "there is no test {name}");
    }
    let rfcs = ["rfc4787_", "rfc5382_", "rfc5508_", "rfc6888_", "rfc7857_"];
    for test in tests.iter().filter(|test| rfcs.iter().any(|rfc| test.starts_with(rfc))) {
        assert!(named.contains(test.as_str()), "the page does not name {test}");
    }
}
