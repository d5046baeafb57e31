// SPDX-License-Identifier: Apache-2.0
//! One member: the Receive, Periodic and Mux machines (802.1AX-2014, 6.4.12, 6.4.13 and 6.4.15).

use std::time::{Duration, Instant};

use crate::pdu::{Participant, System, state};

/// Time until a silent partner is given up (`Short_Timeout_Time`, `Long_Timeout_Time`).
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);
const LONG_TIMEOUT: Duration = Duration::from_secs(90);
/// Interval of LACPDUs (`Fast_Periodic_Time`, `Slow_Periodic_Time`).
const FAST_INTERVAL: Duration = Duration::from_secs(1);
const SLOW_INTERVAL: Duration = Duration::from_secs(30);
/// Least time between two LACPDUs: no more than three in a second (6.4.16).
const MIN_INTERVAL: Duration = Duration::from_millis(334);

/// States of the Receive machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    /// The link is down.
    Disabled,
    /// The partner fell silent, or was not heard yet.
    Expired,
    /// There is no partner.
    Defaulted,
    /// The partner speaks.
    Current,
}

/// What is known of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Whether its packets are received.
    pub collects: bool,
    /// Whether it gets packets to send.
    pub distributes: bool,
    /// The other end, if it has spoken.
    pub partner: Option<Participant>,
    /// What this end says of itself.
    pub actor: Participant,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    actor: Participant,
    partner: Participant,
    receive: Receive,
    /// When the partner is given up.
    expires: Option<Instant>,
    /// Whether an LACPDU is due (`NTT`).
    is_due: bool,
    sent: Option<Instant>,
}

impl Member {
    /// `actor`: this end; of its state, activity, timeout and aggregation count.
    pub(crate) fn new(actor: Participant) -> Self {
        Self {
            actor,
            partner: Participant::default(),
            receive: Receive::Disabled,
            expires: None,
            is_due: false,
            sent: None,
        }
    }

    pub(crate) const fn actor(&self) -> &Participant {
        &self.actor
    }

    pub(crate) const fn partner(&self) -> &Participant {
        &self.partner
    }

    /// The partner's system and key, if it speaks.
    pub(crate) fn group(&self) -> Option<(System, u16)> {
        let is_known = matches!(self.receive, Receive::Current | Receive::Expired) && self.has_partner();
        is_known.then_some((self.partner.system, self.partner.key))
    }

    fn has_partner(&self) -> bool {
        self.partner.system != System::default()
    }

    pub(crate) fn view(&self) -> MemberView {
        MemberView {
            collects: self.actor.is(state::COLLECTING),
            distributes: self.actor.is(state::DISTRIBUTING),
            partner: Some(self.partner).filter(|_| self.has_partner()),
            actor: self.actor,
        }
    }

    pub(crate) fn set_rate(&mut self, is_fast: bool) {
        if self.actor.is(state::TIMEOUT) != is_fast {
            self.actor.set(state::TIMEOUT, is_fast);
            self.is_due = true;
        }
    }

    /// The link has gone up or down.
    pub(crate) fn set_link(&mut self, is_up: bool, now: Instant) {
        match (self.receive, is_up) {
            (Receive::Disabled, true) => self.expire(now),
            (Receive::Disabled, false) => {}
            (_, true) => {}
            (_, false) => {
                self.receive = Receive::Disabled;
                self.expires = None;
                self.partner.set(state::SYNCHRONIZATION, false);
                self.set_selected(false);
                self.is_due = false;
            }
        }
    }

    /// Waits for the partner for a short time.
    fn expire(&mut self, now: Instant) {
        self.receive = Receive::Expired;
        self.expires = Some(now + SHORT_TIMEOUT);
        self.partner.set(state::SYNCHRONIZATION, false);
        self.partner.set(state::TIMEOUT, true);
        self.actor.set(state::EXPIRED, true);
        self.is_due = true;
    }

    /// An LACPDU has come: its sender, and what the sender knows of this end.
    pub(crate) fn receive(&mut self, sender: Participant, known: &Participant, now: Instant) {
        if self.receive == Receive::Disabled {
            return;
        }
        // What the partner has not heard yet it gets now (`update_NTT`).
        let compared = state::ACTIVITY | state::TIMEOUT | state::SYNCHRONIZATION | state::AGGREGATION;
        let knows = known.is_same_port(&self.actor);
        if !knows || (known.state ^ self.actor.state) & compared != 0 {
            self.is_due = true;
        }
        let is_in_sync = sender.is(state::SYNCHRONIZATION) && (knows || !sender.is(state::AGGREGATION));
        self.partner = sender;
        self.partner.set(state::SYNCHRONIZATION, is_in_sync);
        self.receive = Receive::Current;
        self.actor.set(state::EXPIRED, false);
        self.actor.set(state::DEFAULTED, false);
        let timeout = if self.actor.is(state::TIMEOUT) { SHORT_TIMEOUT } else { LONG_TIMEOUT };
        self.expires = Some(now + timeout);
    }

    /// Lets time pass for the Receive machine.
    pub(crate) fn age(&mut self, now: Instant) {
        if self.expires.is_none_or(|at| now < at) {
            return;
        }
        if self.receive == Receive::Current {
            return self.expire(now);
        }
        self.receive = Receive::Defaulted;
        self.expires = None;
        // With the interval that this end asks for, it also looks for a partner.
        let timeout = self.actor.state & state::TIMEOUT;
        self.partner = Participant { state: timeout, ..Participant::default() };
        self.actor.set(state::EXPIRED, false);
        self.actor.set(state::DEFAULTED, true);
        self.is_due = true;
    }

    /// Follows the selection (the Mux machine): a member that was selected attaches, receives when the partner is in
    /// sync, and sends when the partner receives.
    pub(crate) fn set_selected(&mut self, is_selected: bool) {
        let before = self.actor.state;
        let collects = is_selected && self.partner.is(state::SYNCHRONIZATION);
        // A partner with coupled control sends and receives at once.
        let distributes = collects && self.partner.is(state::COLLECTING);
        self.actor.set(state::SYNCHRONIZATION, is_selected);
        self.actor.set(state::COLLECTING, collects);
        self.actor.set(state::DISTRIBUTING, distributes);
        self.is_due |= self.actor.state != before;
    }

    /// Whether an LACPDU is to be sent now; notes that it is.
    pub(crate) fn takes_turn(&mut self, now: Instant) -> bool {
        if self.receive == Receive::Disabled {
            return false;
        }
        let since = self.sent.map(|sent| now.saturating_duration_since(sent));
        // Without an active end nobody speaks; asked, this one does.
        let speaks = self.actor.is(state::ACTIVITY) || self.partner.is(state::ACTIVITY);
        let interval = if self.partner.is(state::TIMEOUT) { FAST_INTERVAL } else { SLOW_INTERVAL };
        let is_periodic = since.is_none_or(|since| since >= interval);
        let may = since.is_none_or(|since| since >= MIN_INTERVAL);
        let sends = may && speaks && (self.is_due || is_periodic);
        if sends {
            self.is_due = false;
            self.sent = Some(now);
        }
        sends
    }
}
