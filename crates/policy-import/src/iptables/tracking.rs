// SPDX-License-Identifier: Apache-2.0
//! Targets that change how connections are tracked.

use super::words::Word;
use crate::chains::Tracking;
use crate::names::number;

/// What the target of a rule changes of how connections are tracked: `NOTRACK`, or `CT` and its options.
pub(super) fn tracking(words: &[Word<'_>]) -> Option<Tracking> {
    let jumps = |pair: &[Word<'_>]| {
        matches!(&*pair[0].text, "-j" | "--jump") && matches!(&*pair[1].text, "CT" | "NOTRACK")
    };
    let at = words.windows(2).position(jumps)? + 1;
    let target: Vec<&str> = words[at..].iter().map(|word| &*word.text).collect();
    let value = |option: &str| {
        let at = target.iter().position(|word| *word == option)?;
        Some(target.get(at + 1).and_then(|value| number(value)?.try_into().ok()))
    };
    // Each direction may have its own.
    let of_direction = ["--zone-orig", "--zone-reply"].iter().any(|option| target.contains(option));
    match &target[..] {
        ["NOTRACK", ..] => Some(Tracking::Off),
        _ if target.contains(&"--notrack") => Some(Tracking::Off),
        _ if target.contains(&"--helper") => Some(Tracking::Helper),
        _ if of_direction => Some(Tracking::Zone(None)),
        _ => value("--zone").map(Tracking::Zone),
    }
}
