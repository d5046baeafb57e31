// SPDX-License-Identifier: Apache-2.0
//! The chains of a file, as readers of formats make them.

use netvm_model::NatAction;
use netvm_policy::{Match, Police};

use super::nat::Side;
use super::tracking::{Before, Tracking};
use crate::{Note, NoteReason};

/// All chains of a file, and its base chains.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) chains: Vec<Chain>,
    /// In the order of the packet path.
    pub(crate) bases: Vec<Base>,
    /// Chains that packets pass on the way to the base chains, in order.
    pub(crate) before: Vec<Before>,
}

/// A chain.
pub(crate) struct Chain {
    pub(crate) name: String,
    pub(crate) line: u32,
    pub(crate) steps: Vec<Step>,
    /// Notes about its rules, if packets reach it.
    pub(crate) notes: Vec<Note>,
    /// The note if no packet reaches it, unless reported already.
    pub(crate) unreached: Option<NoteReason>,
    /// Forwarded packets pass it, although it is not imported; its policy accepts, or drops.
    pub(crate) bypassed: Option<bool>,
}

impl Chain {
    /// A chain without rules.
    pub(crate) fn new(name: &str, line: u32, unreached: Option<NoteReason>) -> Self {
        Self { name: name.to_owned(), line, steps: vec![], notes: vec![], unreached, bypassed: None }
    }
}

/// A base chain.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) chain: usize,
    pub(crate) line: u32,
    /// The packets that enter it.
    pub(crate) scope: Match,
    /// The policy for packets that reach its end: accept, else drop.
    pub(crate) accepts: bool,
    /// It translates this side of connections; `None`: it filters packets.
    pub(crate) translates: Option<Side>,
}

/// A rule of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) line: u32,
    /// Its name in notes.
    pub(crate) what: String,
    pub(crate) name: String,
    /// Its packets: one of these must fit.
    pub(crate) fits: Vec<Match>,
    pub(crate) police: Option<Police>,
    pub(crate) end: End,
    /// The step has no equivalent: the words and the reason. Some packets that fit match it, but netvm does not know
    /// which.
    pub(crate) unsure: Option<(String, NoteReason)>,
    /// What it changes of how connections are tracked.
    pub(crate) tracking: Option<Tracking>,
    /// Its packets are also addressed to the router itself; the words that say so.
    pub(crate) local: Option<String>,
    /// What it translates connections to, if it accepts.
    pub(crate) nat: Option<NatAction>,
}

impl Step {
    /// A step that does nothing to the packets of `fits`.
    pub(crate) fn new(line: u32, what: impl Into<String>, fits: Vec<Match>) -> Self {
        Self {
            line,
            what: what.into(),
            name: String::new(),
            fits,
            police: None,
            end: End::Next,
            unsure: None,
            tracking: None,
            local: None,
            nat: None,
        }
    }
}

/// What follows for matching packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Continue after the step.
    Next,
    Accept,
    Drop,
    Reject,
    Return,
    Jump(usize),
    Goto(usize),
    /// Anything.
    Unknown,
}
