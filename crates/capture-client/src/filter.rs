// SPDX-License-Identifier: Apache-2.0
//! libpcap's language for filters, compiled by libpcap to classic BPF. A text that does not compile is pointed at.

use netvm_api::{FilterProgram, MAX_FILTER};

use crate::libpcap;

/// A filter does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It is longer than libpcap should get.
    #[error(
        "the filter has {0} bytes, the limit is {MAX_FILTER}: use networks in place of hosts, or filter the file later"
    )]
    Long(usize),
    /// A word where there cannot be one.
    #[error("the filter does not compile: {why}\n  {text}\n  {}^ here", " ".repeat(*at))]
    Syntax {
        /// libpcap's reason.
        why: String,
        /// The filter.
        text: String,
        /// Characters before the word.
        at: usize,
    },
    /// Something else, which libpcap names.
    #[error("the filter `{text}` does not compile: {why}")]
    Meaning {
        /// libpcap's reason.
        why: String,
        /// The filter.
        text: String,
    },
}

/// What may follow a beginning that makes sense.
const CONTINUATIONS: &[&str] = &[
    "",
    " 1",
    " 1.2.3.4",
    " host 1.2.3.4",
    " port 1",
    " ip",
    " 1 = 1",
    " 1)",
    " ip)",
    ")",
    "))",
    "] = 1",
    " 1] = 1",
    " = 1",
    " = 1)",
];

/// Compiles a filter for Ethernet: operation, two jumps and a constant for each instruction.
///
/// # Errors
/// [`FilterError`] says where and why.
pub fn compile(text: &str) -> Result<FilterProgram, FilterError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if text.len() > MAX_FILTER {
        return Err(FilterError::Long(text.len()));
    }
    let why = match libpcap::compile(text) {
        Ok(program) => return Ok(program),
        Err(why) => why,
    };
    let text = text.to_owned();
    if !why.contains("syntax error") {
        return Err(FilterError::Meaning { why, text });
    }
    let can_go_on = |front: &str| {
        CONTINUATIONS.iter().any(|more| match libpcap::compile(&format!("{front}{more}")) {
            Ok(_) => true,
            // The words fit; what they mean does not.
            Err(why) => !why.contains("syntax error"),
        })
    };
    let end = text.len();
    let words = words(&text);
    // If some words can go on, fewer of them can, too.
    let wrong = words.get(words.partition_point(|(_, end)| can_go_on(&text[..*end])));
    let at = text[..wrong.map_or(end, |(start, _)| *start)].chars().count();
    let why = if wrong.is_none() { "it ends too early".to_owned() } else { why };
    Err(FilterError::Syntax { why, text, at })
}

/// Where each word begins and ends: names and numbers, and other characters alone.
fn words(text: &str) -> Vec<(usize, usize)> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '-' | '_' | '/' | '\\');
    let mut words: Vec<(usize, usize)> = Vec::new();
    let mut joins = false;
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        match words.last_mut() {
            Some(last) if joins && is_word(c) => last.1 = end,
            _ if !c.is_whitespace() => words.push((at, end)),
            _ => {}
        }
        joins = is_word(c);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_compile() {
        assert_eq!(compile("  "), Ok(Vec::new()));
        let program = compile("tcp port 80 and host 10.0.0.1").unwrap();
        assert!(program.len() > 5, "{program:?}");
        // The last instruction returns.
        assert_eq!(program.last().unwrap().0 & 7, 6);
    }

    #[test]
    fn an_error_points_at_the_word() {
        for (text, at) in [
            ("tcp port and host 10.0.0.1", 9),
            ("tcp prt 80", 4),
            ("host 10.0.0.1 or (udp port 53", 29),
            ("ip[0:3 = 4", 7),
            ("tcp or or udp", 7),
            ("port 80 )", 8),
        ] {
            match compile(text) {
                Err(FilterError::Syntax { at: found, .. }) => assert_eq!(found, at, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        let error = compile("tcp prt 80").unwrap_err().to_string();
        assert!(error.contains("  tcp prt 80\n      ^ here"), "{error}");
    }

    #[test]
    fn long_filters_are_refused_before_libpcap_gets_them() {
        let filter = |hosts: usize| vec!["host 10.0.0.1"; hosts].join(" or ");
        assert!(compile(&filter(400)).is_ok());
        let (long, wrong) = (filter(7000), format!("{} prt", filter(400)));
        assert_eq!(compile(&long), Err(FilterError::Long(long.len())));
        assert!(matches!(compile(&wrong), Err(FilterError::Syntax { at, .. }) if at == wrong.len() - 3));
    }

    #[test]
    fn an_error_of_meaning_is_libpcaps() {
        for text in ["host no-such-host.invalid", "port 70000", "ip6 host 1.2.3.4"] {
            assert!(matches!(compile(text), Err(FilterError::Meaning { .. })), "{text}: {:?}", compile(text));
        }
    }
}
