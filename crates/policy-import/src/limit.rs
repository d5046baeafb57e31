// SPDX-License-Identifier: Apache-2.0
//! Converts limits to netvm's token buckets.

use super::NoteReason;
use super::chains::End;
use netvm_policy::{Police, Rate};

/// A limit of a rule in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Units per `per` seconds.
    pub(super) rate: u64,
    pub(super) seconds: u64,
    /// Burst size in units.
    pub(super) burst: u64,
    /// The unit: bytes, else packets.
    pub(super) bytes: bool,
    /// Matches packets beyond the limit, else within it.
    pub(super) above: bool,
}

impl Limit {
    /// The effect of a rule with this limit and `end`, and the differences. `late`: other matches follow the limit.
    ///
    /// # Errors
    /// The reason why netvm has no such rule.
    pub(super) fn applied(&self, end: End, late: bool) -> Result<(End, Police, Vec<NoteReason>), NoteReason> {
        let end = match (self.above, end) {
            (false, End::Accept) => End::Accept,
            // Packets beyond the limit meet the rest of the chain, which may drop all of them.
            (false, End::Return) => End::Return,
            // Packets beyond the limit are dropped; others continue.
            (true, End::Drop) => End::Next,
            _ => return Err(NoteReason::LimitUse),
        };
        let (police, mut differs) = self.police()?;
        differs.extend(late.then_some(NoteReason::LimitOrder));
        Ok((end, police, differs))
    }

    /// The token bucket and the differences.
    ///
    /// # Errors
    /// The reason why there is none.
    fn police(&self) -> Result<(Police, Vec<NoteReason>), NoteReason> {
        let per_second = self.rate / self.seconds;
        if per_second == 0 {
            return Err(NoteReason::SlowRate);
        }
        let mut notes = vec![];
        if !self.rate.is_multiple_of(self.seconds) {
            notes.push(NoteReason::RoundedRate(per_second));
        }
        let rate = Rate { per_second, burst: self.burst.max(1) };
        if self.bytes {
            notes.push(NoteReason::LimitBytes);
            let bits =
                Rate { per_second: rate.per_second.saturating_mul(8), burst: rate.burst.saturating_mul(8) };
            return Ok((Police { bits: Some(bits), packets: None }, notes));
        }
        Ok((Police { packets: Some(rate), bits: None }, notes))
    }
}

/// Seconds of a time unit, which iptables and nftables abbreviate to any prefix.
pub(super) fn seconds(unit: &str) -> Option<u64> {
    let units = [("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86_400), ("weeks", 604_800)];
    let unit = unit.to_ascii_lowercase();
    let known = units.into_iter().find(|(name, _)| !unit.is_empty() && name.starts_with(&unit));
    known.map(|(_, seconds)| seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_rounded_to_whole_units_per_second() {
        let limit = |rate, unit| Limit {
            rate,
            seconds: seconds(unit).unwrap(),
            burst: 5,
            bytes: false,
            above: false,
        };
        let police = |per_second| Police { packets: Some(Rate { per_second, burst: 5 }), bits: None };
        assert_eq!(limit(100, "s").police(), Ok((police(100), vec![])));
        assert_eq!(limit(120, "min").police(), Ok((police(2), vec![])));
        assert_eq!(limit(90, "minute").police(), Ok((police(1), vec![NoteReason::RoundedRate(1)])));
        assert_eq!(limit(59, "minute").police(), Err(NoteReason::SlowRate));
        let bits = Police { bits: Some(Rate { per_second: 80, burst: 40 }), packets: None };
        let limit = Limit { bytes: true, ..limit(10, "second") };
        assert_eq!(limit.police(), Ok((bits, vec![NoteReason::LimitBytes])));
        assert_eq!(
            ["sec", "h", "day", "week", "", "x"].map(seconds),
            [Some(1), Some(3600), Some(86_400), Some(604_800), None, None]
        );
    }
}
