// SPDX-License-Identifier: Apache-2.0
//! Which rules apply now: by the clock, and by the loads of roles. Evaluated once a second, outside of the packet path;
//! a rule that begins or ends to apply is a change of rules like any other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netvm_engine::{Engine, InstanceState, InstanceView};
use netvm_model::{Host, LoadLimit, RoleId, Rule};
use netvm_policy::{Clocks, WeekMinute};
use tokio::time::Instant;

use crate::runtime::lock;

/// Loads of the roles that have NFs, in percent.
pub(crate) type Loads = BTreeMap<RoleId, f32>;

/// What a running configuration follows, as of one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// The configuration.
    pub(crate) host: Arc<Host>,
    /// The loads.
    pub(crate) loads: Arc<Loads>,
}

impl Measured {
    pub(crate) fn of(engine: &Engine) -> Self {
        Self { host: engine.shared_host(), loads: Arc::new(loads(engine)) }
    }
}

/// The loads of roles: of each NF that gets new flows the fullest of its rings in the last second, and the mean
/// of those.
fn loads(engine: &Engine) -> Loads {
    let mut sums: BTreeMap<RoleId, (f32, f32)> = BTreeMap::new();
    let has_packets = |nf: &InstanceView| {
        matches!(nf.state, InstanceState::Active | InstanceState::Hung) && !nf.is_draining
    };
    for nf in engine.instances().iter().filter(|nf| has_packets(nf)) {
        let fullest = nf.threads.iter().map(|thread| thread.fill).fold(0.0, f32::max);
        let (sum, count) = sums.entry(nf.role).or_default();
        *sum += fullest * 100.0;
        *count += 1.0;
    }
    sums.into_iter().map(|(role, (sum, count))| (role, sum / count)).collect()
}

/// The state of a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    is_met: bool,
    /// Since when the load says the opposite.
    opposed_since: Option<Instant>,
}

impl Limit {
    /// Follows a load; `None`: there is no NF, and nothing is met.
    fn follow(&mut self, limit: LoadLimit, load: Option<f32>, now: Instant) {
        let Some(load) = load else {
            *self = Self::default();
            return;
        };
        if limit.compare(load).is_none_or(|is_met| is_met == self.is_met) {
            self.opposed_since = None;
            return;
        }
        let since = *self.opposed_since.get_or_insert(now);
        if now.duration_since(since) >= Duration::from_secs(limit.seconds.into()) {
            *self = Self { is_met: !self.is_met, opposed_since: None };
        }
    }
}

/// What decides which rules apply.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Mutex<BTreeMap<LoadLimit, Limit>>);

impl Conditions {
    /// Whether a host has a rule that does not always apply.
    pub(crate) fn are_in(host: &Host) -> bool {
        host.rules.iter().any(|rule| !rule.when().is_always())
    }

    /// Follows the loads for the limits of a host.
    pub(crate) fn follow(&self, host: &Host, loads: &Loads, now: Instant) {
        let mut limits = lock(&self.0);
        let before = std::mem::take(&mut *limits);
        for limit in host.rules.iter().filter_map(|rule| rule.when().load) {
            let state = || before.get(&limit).copied().unwrap_or_default();
            limits.entry(limit).or_insert_with(|| {
                let mut state = state();
                state.follow(limit, loads.get(&limit.role).copied(), now);
                state
            });
        }
    }

    /// Whether the rules of a host that apply are others now.
    pub(crate) fn differ(&self, host: &Host) -> bool {
        let (clocks, limits) = (clocks(), lock(&self.0));
        host.rules.iter().any(|rule| rule.is_in_time() != applies(rule, clocks, &limits))
    }

    /// Says of each rule of a host whether it applies now. Returns those of which that is new.
    pub(crate) fn settle(&self, host: &mut Host) -> Vec<Rule> {
        let (clocks, limits) = (clocks(), lock(&self.0));
        let mut changed = Vec::new();
        for rule in host.rules.iter_mut().filter(|rule| !rule.when().is_always()) {
            let active = applies(rule, clocks, &limits);
            if active != rule.is_in_time() {
                rule.set_active(active);
                changed.push(rule.clone());
            }
        }
        changed
    }
}

fn applies(rule: &Rule, clocks: Clocks, limits: &BTreeMap<LoadLimit, Limit>) -> bool {
    let when = rule.when();
    when.has(clocks) && when.load.is_none_or(|limit| limits.get(&limit).is_some_and(|limit| limit.is_met))
}

/// The present time.
fn clocks() -> Clocks {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let utc = week_minute(now.cast_signed());
    Clocks { local: local(now.cast_signed()).unwrap_or(utc), utc }
}

/// The minute of the week of a time in seconds since 1970, which began on a Thursday.
fn week_minute(seconds: i64) -> WeekMinute {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    WeekMinute { day: (days + 3).rem_euclid(7) as u8, minute: (second / 60) as u16 }
}

/// As [`week_minute`] in local time: the zone of the environment variable `TZ`, else of `/etc/localtime`, when netvmd
/// began.
fn local(seconds: i64) -> Option<WeekMinute> {
    // SAFETY: all fields are numbers, or a pointer that may be null.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to values of this function, which live as long as the call.
    if unsafe { libc::localtime_r(&raw const seconds, &raw mut time) }.is_null() {
        return None;
    }
    // The C library counts days from Sunday.
    let day = u8::try_from((time.tm_wday + 6) % 7).ok()?;
    let minute = u16::try_from(time.tm_hour * 60 + time.tm_min).ok()?;
    Some(WeekMinute { day, minute })
}

#[cfg(test)]
mod tests {
    use netvm_model::{Bound, When};

    use super::*;

    #[test]
    fn the_week_begins_on_monday() {
        assert_eq!(week_minute(0), WeekMinute { day: 3, minute: 0 });
        // 2024-01-01 was a Monday.
        assert_eq!(week_minute(1_704_067_200 + 8 * 3600 + 59), WeekMinute { day: 0, minute: 480 });
        assert_eq!(week_minute(1_704_067_200 - 1), WeekMinute { day: 6, minute: 1439 });
        let here = local(1_704_067_200).unwrap();
        assert!(here.minute < 1440 && here.day < 7);
    }

    /// A host with one rule for a load.
    fn host(limit: LoadLimit) -> Host {
        let mut rule = netvm_config::parse_rules("rule", "drop = true", &Host::default()).unwrap().remove(0);
        rule.set_when(When { times: Vec::new(), load: Some(limit) });
        Host { rules: vec![rule], ..Host::default() }
    }

    #[test]
    fn a_load_counts_once_it_lasts_and_until_it_is_back() {
        let limit = LoadLimit { role: RoleId(7), bound: Bound::Above(60), until: 30, seconds: 2 };
        let (conditions, mut host, start) = (Conditions::default(), host(limit), Instant::now());
        let mut at = |second: u64, load: Option<f32>| {
            let loads = load.map(|load| (RoleId(7), load)).into_iter().collect();
            conditions.follow(&host, &loads, start + Duration::from_secs(second));
            assert_eq!(conditions.differ(&host), !conditions.settle(&mut host).is_empty());
            host.rules[0].is_active()
        };
        let steps = [
            (0, Some(70.0), false),
            (1, Some(20.0), false),
            (2, Some(70.0), false),
            (3, Some(61.0), false),
            (4, Some(80.0), true),
            (5, Some(40.0), true),
            (6, Some(20.0), true),
            (7, Some(40.0), true),
            (8, Some(20.0), true),
            (10, Some(20.0), false),
            (11, Some(90.0), false),
            (13, Some(90.0), true),
            (14, None, false),
            (15, Some(90.0), false),
        ];
        for (second, load, expected) in steps {
            assert_eq!(at(second, load), expected, "after {second} s");
        }
    }
}
