// SPDX-License-Identifier: Apache-2.0
//! `policy-eval`: a file of headers against a filter set.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../classifier/tests/common/mod.rs"]
mod common;

use common::{eal, entries, filter_sets, scan};
use netvm_classifier::{Limits, NONE};
use netvm_daemon::{EvalError, EvalInput, Summary, eval};
use netvm_policy::arbitrary::Generator;

const RULES: &str = "@10.0.0.0/8 0.0.0.0/0 0 : 65535 80 : 80 0x06/0xFF 0x0000/0x0200
@0.0.0.0/0\t10.0.0.1/32\t1 : 2\t0 : 65535\t0x00/0x00\t0x0000/0x0000\t
@2001:db8::/32 ::/0 0 : 65535 0 : 65535 0x11/0xFF
";

fn run(limits: &Limits, rules: &str, headers: &str) -> (Result<Summary, EvalError>, String) {
    let mut out = Vec::new();
    let input = EvalInput { rules: rules.as_bytes(), headers: headers.as_bytes() };
    let outcome = eval(eal(), limits, input, &mut out);
    (outcome, String::from_utf8(out).unwrap())
}

#[test]
fn each_header_has_a_line() {
    let headers =
        "167772161 1 1 80 6 0 0\n10.9.9.9 0.0.0.1 1 81 6\n\n1 10.0.0.1 2 9 47\n2001:db8::9 ::1 1 2 17\n";
    let (outcome, out) = run(&Limits::default(), RULES, headers);
    assert_eq!(out, "0\n-\n1\n2\n");
    assert_eq!(outcome.unwrap(), Summary { rules: 3, headers: 4, matched: 3, scanned: false });
    assert_eq!(run(&Limits::default(), "", "1 2 3 4 5").1, "-\n");
}

#[test]
fn errors_name_file_and_line() {
    let says = |rules: &str, headers: &str| {
        let (outcome, out) = run(&Limits::default(), rules, headers);
        (outcome.unwrap_err().to_string(), out)
    };
    let (error, out) = says(RULES, "1 10.0.0.1 2 9 47\n1 10.0.0.1 2 9 47\n1 2 3\n1 10.0.0.1 2 9 47\n");
    assert_eq!(
        error,
        "the headers, line 3: expected a destination port (0 to 65535), found the end of the line"
    );
    assert_eq!(out, "1\n1\n");
    let (error, out) = says("@10.0.0.0/33 0.0.0.0/0 0 : 1 0 : 1 0x06/0xFF", "1 2 3 4 5");
    assert!(error.starts_with("the rules, line 1, column 2"), "{error}");
    assert_eq!(out, "");
}

/// A compiled classifier, and the fallback without memory, agree with a linear scan.
#[test]
fn results_agree_with_a_linear_scan() {
    let (_, rules) = filter_sets().swap_remove(0);
    let entries = entries(&rules);
    let cubes = entries.concat();
    let mut generator = Generator::new(3);
    let (mut headers, mut expected) = (String::new(), String::new());
    for _ in 0..5_000 {
        let key = generator.key(&cubes);
        let Some((source, destination)) = key.source.v4_bits().zip(key.destination.v4_bits()) else {
            continue;
        };
        if !key.is_ip() {
            continue;
        }
        let (from, to) = (key.source_port, key.destination_port);
        headers += &format!("{source}\t{destination}\t{from}\t{to}\t{}\t0x00\t12\n", key.protocol.0);
        expected += &match scan(&entries, &key) {
            NONE => "-\n".to_owned(),
            number => format!("{number}\n"),
        };
    }
    for (limits, scanned) in [(Limits::default(), false), (Limits { memory: 100, ..Limits::default() }, true)]
    {
        let (outcome, out) = run(&limits, &rules, &headers);
        assert_eq!(outcome.unwrap().scanned, scanned);
        assert!(out == expected);
    }
}
