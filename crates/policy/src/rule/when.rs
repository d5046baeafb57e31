// SPDX-License-Identifier: Apache-2.0
//! When a rule applies: in times of the week, and while a role has a load. Nothing here measures either: netvmd says of
//! each rule whether it applies now ([`Rule::set_active`](super::Rule::set_active)).

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use netvm_ids::RoleId;
use thiserror::Error;

/// Minutes of a day.
const MINUTES_OF_DAY: u16 = 24 * 60;
/// Names of the days, from Monday as in ISO 8601.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const ALL_DAYS: u8 = 0x7f;

/// When a rule applies; by default always.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct When {
    /// In any of these times; always if there are none.
    pub times: Vec<Window>,
    /// While a role has this load.
    pub load: Option<LoadLimit>,
}

impl When {
    /// Whether it is always.
    #[must_use]
    pub const fn is_always(&self) -> bool {
        self.times.is_empty() && self.load.is_none()
    }

    /// Whether a time is in one of the windows, or there are none.
    #[must_use]
    pub fn has(&self, now: Clocks) -> bool {
        self.times.is_empty() || self.times.iter().any(|window| window.has(now))
    }
}

/// The present time on both clocks that windows name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Local time.
    pub local: WeekMinute,
    /// UTC.
    pub utc: WeekMinute,
}

/// A minute of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekMinute {
    /// The day, 0 (Monday) to 6.
    pub day: u8,
    /// The minute of the day, below 1440.
    pub minute: u16,
}

/// Hours on days of the week, such as `Mon-Fri 08:00-18:00`. Hours that end before they begin end on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Days on which it begins: bit 0 is Monday.
    days: u8,
    /// Its first minute of the day.
    from: u16,
    /// The minute of the day after its last one, 1440 at most.
    to: u16,
    is_utc: bool,
}

impl Window {
    /// Whether a time is in it.
    #[must_use]
    pub fn has(&self, now: Clocks) -> bool {
        let WeekMinute { day, minute } = if self.is_utc { now.utc } else { now.local };
        let begins = |day: u8| self.days & (1 << (day % 7)) != 0;
        if self.from < self.to {
            begins(day) && self.from <= minute && minute < self.to
        } else {
            (begins(day) && self.from <= minute) || (begins(day + 6) && minute < self.to)
        }
    }
}

/// A text is no [`Window`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseWindowError {
    /// The text has other parts.
    #[error(
        "write days, hours or both, such as \"Mon-Fri 08:00-18:00\", \"Sat,Sun\" or \"22:00-06:00\", and \" UTC\" behind it unless the hours are local time"
    )]
    Form,
    /// A day has another name.
    #[error("days are Mon, Tue, Wed, Thu, Fri, Sat and Sun, not `{0}`")]
    Day(String),
    /// Hours are not on the clock.
    #[error("hours are from 00:00 to 24:00, with two digits each, not `{0}`")]
    Hour(String),
    /// Hours without a minute between them.
    #[error("the hours end when they begin: for the whole day, leave them out")]
    Empty,
}

impl FromStr for Window {
    type Err = ParseWindowError;

    fn from_str(text: &str) -> Result<Self, ParseWindowError> {
        let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
        let is_utc = words.pop_if(|last| *last == "UTC").is_some();
        let is_hours = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
        let (days, hours) = match words[..] {
            [hours] if is_hours(hours) => (ALL_DAYS, Some(hours)),
            [days] => (days_of(days)?, None),
            [days, hours] if is_hours(hours) => (days_of(days)?, Some(hours)),
            _ => return Err(ParseWindowError::Form),
        };
        let (from, to) = match hours.map(|hours| hours.split_once('-').ok_or(ParseWindowError::Form)) {
            Some(hours) => {
                let (from, to) = hours?;
                (minute_of(from)?, minute_of(to)?)
            }
            None => (0, MINUTES_OF_DAY),
        };
        if from == MINUTES_OF_DAY {
            return Err(ParseWindowError::Hour("24:00".to_owned()));
        }
        if from == to {
            return Err(ParseWindowError::Empty);
        }
        Ok(Self { days, from, to, is_utc })
    }
}

/// `Mon-Fri,Sun`; a range may go beyond Sunday.
fn days_of(text: &str) -> Result<u8, ParseWindowError> {
    let day = |name: &str| {
        let known = DAYS.iter().position(|day| *day == name);
        known.ok_or_else(|| ParseWindowError::Day(name.to_owned()))
    };
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        let count = (last + DAYS.len() - first) % DAYS.len();
        (first..=first + count).for_each(|day| days |= 1 << (day % DAYS.len()));
    }
    Ok(days)
}

/// `08:30`.
fn minute_of(text: &str) -> Result<u16, ParseWindowError> {
    let number = |text: &str| -> Option<u16> {
        let is_plain = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
        is_plain.then(|| text.parse().ok()).flatten()
    };
    let minute = || {
        let (hour, minute) = text.split_once(':')?;
        let (hour, minute) = (number(hour)?, number(minute)?);
        let sum = hour * 60 + minute;
        (minute < 60 && sum <= MINUTES_OF_DAY).then_some(sum)
    };
    minute().ok_or_else(|| ParseWindowError::Hour(text.to_owned()))
}

impl Display for Window {
    /// As [`Window::from_str`] reads it.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_whole_day = (self.from, self.to) == (0, MINUTES_OF_DAY);
        let mut comma = "";
        if self.days != ALL_DAYS || is_whole_day {
            let mut day = 0;
            while day < DAYS.len() {
                let run = (day..DAYS.len()).take_while(|day| self.days & (1 << day) != 0).count();
                match run {
                    0 => {}
                    1 => write!(f, "{comma}{}", DAYS[day])?,
                    _ => write!(f, "{comma}{}-{}", DAYS[day], DAYS[day + run - 1])?,
                }
                comma = if run > 0 { "," } else { comma };
                day += run.max(1);
            }
        }
        if !is_whole_day {
            let blank = if comma.is_empty() { "" } else { " " };
            let [(a, b), (c, d)] = [self.from, self.to].map(|minute| (minute / 60, minute % 60));
            write!(f, "{blank}{a:02}:{b:02}-{c:02}:{d:02}")?;
        }
        if self.is_utc { f.write_str(" UTC") } else { Ok(()) }
    }
}

/// A load of a role, with hysteresis: from where it is met to where it is no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadLimit {
    /// The role.
    pub role: RoleId,
    /// Met once the load is beyond this.
    pub bound: Bound,
    /// No longer met once it is back at this, in percent.
    pub until: u8,
    /// Seconds that it must be beyond the bound, or back, until that counts.
    pub seconds: u16,
}

/// A bound of a load, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bound {
    /// The load is higher.
    Above(u8),
    /// The load is lower.
    Below(u8),
}

impl Bound {
    /// Where a limit without `until` is no longer met: at half of the load, or at twice.
    #[must_use]
    pub const fn usual_end(self) -> u8 {
        match self {
            Self::Above(percent) => percent / 2,
            Self::Below(percent) if percent < 50 => percent * 2,
            Self::Below(_) => 100,
        }
    }
}

impl LoadLimit {
    /// Whether a load is beyond the bound (`true`), back (`false`), or between both.
    #[must_use]
    pub fn compare(&self, percent: f32) -> Option<bool> {
        let end = f32::from(self.until);
        let (is_beyond, is_back) = match self.bound {
            Bound::Above(bound) => (percent > bound.into(), percent <= end),
            Bound::Below(bound) => (percent < bound.into(), percent >= end),
        };
        if is_beyond { Some(true) } else { is_back.then_some(false) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(text: &str) -> Window {
        text.parse().unwrap()
    }

    fn at(day: u8, hour: u16, minute: u16) -> Clocks {
        let local = WeekMinute { day, minute: hour * 60 + minute };
        // UTC is another day.
        Clocks { local, utc: WeekMinute { day: (day + 1) % 7, ..local } }
    }

    #[test]
    fn hours_begin_and_end_on_their_days() {
        let work = window("Mon-Fri 08:00-18:00");
        assert!(!work.has(at(0, 7, 59)) && work.has(at(0, 8, 0)) && work.has(at(4, 17, 59)));
        assert!(!work.has(at(4, 18, 0)) && !work.has(at(5, 12, 0)) && !work.has(at(6, 12, 0)));
        let utc = window("Mon-Fri 08:00-18:00 UTC");
        assert!(utc.has(at(6, 12, 0)) && !utc.has(at(4, 12, 0)));
        let night = window("Fri 22:00-06:00");
        assert!(night.has(at(4, 22, 0)) && night.has(at(5, 5, 59)));
        assert!(!night.has(at(4, 5, 0)) && !night.has(at(5, 6, 0)) && !night.has(at(5, 23, 0)));
        let over_sunday = window("Sun 23:30-00:30");
        assert!(
            over_sunday.has(at(6, 23, 45)) && over_sunday.has(at(0, 0, 15)) && !over_sunday.has(at(0, 0, 30))
        );
        let weekend = window("Sat-Mon");
        assert!(weekend.has(at(5, 0, 0)) && weekend.has(at(0, 23, 59)) && !weekend.has(at(1, 0, 0)));
        assert!(window("00:00-24:00").has(at(3, 23, 59)));
    }

    #[test]
    fn windows_print_as_they_are_read() {
        for text in ["Mon-Fri 08:00-18:00", "Sat-Sun UTC", "Mon,Wed-Fri", "22:00-06:30 UTC", "Mon-Sun"] {
            assert_eq!(window(text).to_string(), text);
        }
        assert_eq!(window("Sat-Mon 01:00-02:00").to_string(), "Mon,Sat-Sun 01:00-02:00");
        assert_eq!(window("Mon-Sun 01:00-02:00").to_string(), "01:00-02:00");
    }

    #[test]
    fn other_texts_are_refused() {
        let why = |text: &str| text.parse::<Window>().unwrap_err();
        for text in ["", "UTC", "Mon 08:00-09:00 CET", "Mon Tue", "08:00", "Mon 08:00-09:00 Tue"] {
            assert_eq!(why(text), ParseWindowError::Form, "{text}");
        }
        assert_eq!(why("Monday"), ParseWindowError::Day("Monday".to_owned()));
        assert_eq!(why("Mon-"), ParseWindowError::Day(String::new()));
        for (text, hour) in [("8:00-09:00", "8:00"), ("08:00-24:01", "24:01"), ("08:60-09:00", "08:60")] {
            assert_eq!(why(text), ParseWindowError::Hour(hour.to_owned()));
        }
        assert_eq!(why("24:00-06:00"), ParseWindowError::Hour("24:00".to_owned()));
        assert_eq!(why("08:00-08:00"), ParseWindowError::Empty);
    }

    proptest! {
        #[test]
        fn every_window_can_be_read_again(days in 1u8..=ALL_DAYS, from in 0u16..1440, to in 0u16..=1440, is_utc: bool) {
            prop_assume!(from != to);
            let window = Window { days, from, to, is_utc };
            prop_assert_eq!(window.to_string().parse(), Ok(window));
        }
    }

    #[test]
    fn a_load_between_the_bounds_changes_nothing() {
        let limit = |bound, until| LoadLimit { role: RoleId(0), bound, until, seconds: 0 };
        let above = limit(Bound::Above(60), 30);
        assert_eq!(
            [61.0, 60.0, 31.0, 30.0].map(|load| above.compare(load)),
            [Some(true), None, None, Some(false)]
        );
        let below = limit(Bound::Below(10), 20);
        assert_eq!(
            [9.0, 10.0, 19.0, 20.0].map(|load| below.compare(load)),
            [Some(true), None, None, Some(false)]
        );
        assert_eq!(
            [Bound::Above(60), Bound::Below(10), Bound::Below(70)].map(Bound::usual_end),
            [30, 20, 100]
        );
    }
}
