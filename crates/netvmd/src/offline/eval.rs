// SPDX-License-Identifier: Apache-2.0
//! `netvm policy eval`: the first rule of a ClassBench filter set for each header of a file.

use std::io::{self, BufRead, Write};

use dpdk::Eal;
use netvm_policy::{Actions, Cube, TooManyCubes};
use netvm_policy_import::classbench::{self, ClassBenchError, Flags};
use netvm_wire::FlowKey;
use thiserror::Error;

use netvm_classifier::{BURST, BuildError, Classifier, Limits, NONE};

use super::headers::{self, HeaderError};

/// Totals of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Rules of the filter set.
    pub rules: usize,
    /// Headers.
    pub headers: u64,
    /// Headers that match a rule.
    pub matched: u64,
    /// Whether rules were scanned linearly because a classifier exceeds the EAL's memory.
    pub scanned: bool,
}

/// Headers cannot be evaluated.
#[derive(Debug, Error)]
pub enum EvalError {
    /// The rules cannot be read.
    #[error("cannot read the rules: {0}")]
    ReadRules(#[source] io::Error),
    /// The rules are not a filter set.
    #[error("the rules, {0}")]
    Rules(#[source] ClassBenchError),
    /// A rule expands to too many cubes.
    #[error("the rules, line {line}: {why}")]
    Sets {
        /// Its line.
        line: u32,
        /// Their number.
        why: TooManyCubes,
    },
    /// The rules cannot be compiled.
    #[error("cannot compile the rules: {0}")]
    Build(#[source] BuildError),
    /// The headers cannot be read.
    #[error("cannot read the headers: {0}")]
    ReadHeaders(#[source] io::Error),
    /// A line is not a header.
    #[error("the headers, {0}")]
    Header(#[source] HeaderError),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[source] io::Error),
}

/// What to evaluate, in ClassBench's formats.
#[derive(Debug)]
pub struct EvalInput<R, H> {
    /// The rules.
    pub rules: R,
    /// The headers of packets.
    pub headers: H,
}

/// Writes for each header the number of the first matching rule, from 0, or `-`. Ignores the rules' flags, as headers
/// have none.
///
/// If a compiled classifier exceeds the limits, scans the rules linearly: the same results, 1,000 times slower.
///
/// # Errors
/// [`EvalError`]; results for the headers before a wrong one are written.
pub fn eval(
    eal: Eal,
    limits: &Limits,
    input: EvalInput<impl BufRead, impl BufRead>,
    out: impl Write,
) -> Result<Summary, EvalError> {
    let EvalInput { mut rules, mut headers } = input;
    let mut text = String::new();
    rules.read_to_string(&mut text).map_err(EvalError::ReadRules)?;
    let imported = classbench::parse(&text, Actions::default(), Flags::Ignore).map_err(EvalError::Rules)?;
    let cubes = imported
        .rules
        .iter()
        .map(|rule| rule.matches.cubes().map_err(|why| EvalError::Sets { line: rule.line, why }));
    let entries: Vec<Vec<Cube>> = cubes.collect::<Result<_, _>>()?;
    let classifier = match Classifier::build(eal, &entries, limits) {
        Ok(classifier) => Some(classifier),
        Err(BuildError::TooLarge { .. }) => None,
        Err(error) => return Err(EvalError::Build(error)),
    };

    let mut results = Results {
        summary: Summary { rules: entries.len(), headers: 0, matched: 0, scanned: classifier.is_none() },
        keys: Vec::with_capacity(BURST),
        entries,
        classifier,
        text: Vec::new(),
        out,
    };
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if headers.read_until(b'\n', &mut line).map_err(EvalError::ReadHeaders)? == 0 {
            break;
        }
        match headers::read(number, &line) {
            Ok(None) => {}
            Ok(Some(key)) => results.add(key)?,
            Err(error) => {
                results.finish()?;
                return Err(EvalError::Header(error));
            }
        }
    }
    results.finish()
}

/// Classifies bursts of headers and buffers the output.
struct Results<W> {
    summary: Summary,
    keys: Vec<FlowKey>,
    entries: Vec<Vec<Cube>>,
    classifier: Option<Classifier>,
    text: Vec<u8>,
    out: W,
}

impl<W: Write> Results<W> {
    const WRITE: usize = 1 << 16;

    fn add(&mut self, key: FlowKey) -> Result<(), EvalError> {
        self.keys.push(key);
        if self.keys.len() == BURST {
            self.burst();
        }
        if self.text.len() >= Self::WRITE { self.write() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<Summary, EvalError> {
        self.burst();
        self.write()?;
        self.out.flush().map_err(EvalError::Write)?;
        Ok(self.summary)
    }

    fn burst(&mut self) {
        let mut found = [NONE; BURST];
        match &self.classifier {
            Some(classifier) => classifier.classify(&self.keys, &mut found),
            None => {
                for (key, found) in self.keys.iter().zip(&mut found) {
                    *found = scan(&self.entries, key);
                }
            }
        }
        for found in &found[..self.keys.len()] {
            self.summary.headers += 1;
            if *found == NONE {
                self.text.extend_from_slice(b"-\n");
            } else {
                self.summary.matched += 1;
                put_number(&mut self.text, *found);
            }
        }
        self.keys.clear();
    }

    fn write(&mut self) -> Result<(), EvalError> {
        self.out.write_all(&self.text).map_err(EvalError::Write)?;
        self.text.clear();
        Ok(())
    }
}

fn scan(entries: &[Vec<Cube>], key: &FlowKey) -> u32 {
    let first = entries.iter().position(|cubes| cubes.iter().any(|cube| cube.contains(key)));
    first.map_or(NONE, |n| n as u32)
}

fn put_number(text: &mut Vec<u8>, mut number: u32) {
    let mut digits = [b'\n'; 11];
    let mut at = digits.len() - 1;
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at..]);
}
