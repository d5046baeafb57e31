// SPDX-License-Identifier: Apache-2.0
//! The number of replicas of roles that follow their load. In: loads, once a second. Out: a replica that starts, or one
//! that gets no new flows and ends once it has no live ones.

use std::time::Duration;

use netvm_attach::messages::Message;
use netvm_engine::InstanceId;
use netvm_model::{Host, NfConfig, NfStart, RoleId, Scale};
use tokio::time::Instant;

use super::replica::Replica;
use super::{Role, Supervisor};
use crate::engine_thread::EngineGone;
use crate::runtime::lock;

/// The replicas of a role that follow its load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scaling {
    /// How many there should be; 0: not yet decided.
    wanted: u16,
    /// Since when the load is beyond a bound: above it, or below.
    beyond: Option<(Beyond, Instant)>,
    /// The one that is to end, and since when.
    draining: Option<(InstanceId, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    Above,
    Below,
}

/// What to do about the replicas of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    /// Start one more.
    Grow,
    /// Give one no more new flows.
    Drain,
    /// Give the one that was to end new flows again.
    Keep(InstanceId),
    /// End the one that drains, if its flows have ended or it is time.
    End(InstanceId, TimeUp),
}

/// Whether a replica ends even with live flows.
type TimeUp = bool;

/// The load of a role, and the bounds of its replicas.
#[derive(Clone, Copy, Debug)]
struct Observed {
    scale: Scale,
    fewest: u16,
    /// `None`: no replica is attached.
    load: Option<f32>,
    now: Instant,
}

impl Scaling {
    /// The number of replicas within the bounds.
    pub(super) fn count(self, fewest: u16, scale: Scale) -> u16 {
        self.wanted.clamp(fewest, scale.most)
    }

    /// Follows the load. A change of the number begins a new observation.
    fn follow(&mut self, observed: Observed) -> Step {
        let Observed { scale, fewest, load, now } = observed;
        self.wanted = self.count(fewest, scale);
        let beyond = load.and_then(|load| {
            let (above, below) = (f32::from(scale.grow_above), f32::from(scale.shrink_below));
            if load > above { Some(Beyond::Above) } else { (load < below).then_some(Beyond::Below) }
        });
        let since = match (beyond, self.beyond) {
            (Some(beyond), Some((before, since))) if beyond == before => since,
            _ => now,
        };
        self.beyond = beyond.map(|beyond| (beyond, since));
        let lasts = now.duration_since(since) >= Duration::from_secs(scale.seconds.into());
        match (beyond.filter(|_| lasts), self.draining) {
            (Some(Beyond::Above), Some((id, _))) => {
                (self.draining, self.beyond) = (None, None);
                Step::Keep(id)
            }
            (Some(Beyond::Above), None) if self.wanted < scale.most => {
                (self.wanted, self.beyond) = (self.wanted + 1, None);
                Step::Grow
            }
            (_, Some((id, since))) => {
                Step::End(id, now.duration_since(since) >= Duration::from_secs(scale.drain.into()))
            }
            (Some(Beyond::Below), None) if self.wanted > fewest => Step::Drain,
            _ => Step::Nothing,
        }
    }
}

/// A change of the number of replicas, to tell of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scaled {
    pub(crate) role: String,
    pub(crate) what: String,
}

impl Supervisor {
    /// Follows the loads of roles whose number of replicas depends on it. Not beside a change of the configuration.
    ///
    /// # Errors
    /// [`EngineGone`].
    pub(crate) async fn scale(
        &self,
        host: &Host,
        load: impl Fn(RoleId) -> Option<f32>,
    ) -> Result<Vec<Scaled>, EngineGone> {
        let mut changes = Vec::new();
        lock(&self.scaling).retain(|role, _| host.nf_named(role).is_some_and(NfConfig::scales));
        for nf in &host.nfs {
            let NfStart::Managed { scale: Some(scale), replicas: fewest, .. } = nf.start else { continue };
            let observed = Observed { scale, fewest, load: load(nf.id), now: Instant::now() };
            let step = lock(&self.scaling).entry(nf.role.clone()).or_default().follow(observed);
            let what = self.take(step, nf).await?;
            changes.extend(what.map(|what| Scaled { role: nf.role.clone(), what }));
        }
        Ok(changes)
    }

    /// Takes a step. Returns what has changed.
    async fn take(&self, step: Step, nf: &NfConfig) -> Result<Option<String>, EngineGone> {
        match step {
            Step::Nothing => Ok(None),
            Step::Grow => {
                Ok(self.grow(&nf.role).map(|count| format!("{count} replicas now: the load is high")))
            }
            Step::Drain => {
                let Some((slot, id)) = self.last_attached(&nf.role) else { return Ok(None) };
                self.engine.call(move |engine| engine.set_draining(id, true)).await?;
                self.engine.messages().tell(id, &Message::Drain);
                self.change_scaling(&nf.role, |scaling| scaling.draining = Some((id, Instant::now())));
                Ok(Some(format!(
                    "replica {slot} gets no new flows, and ends when those that it has have ended"
                )))
            }
            Step::Keep(id) => {
                self.engine.call(move |engine| engine.set_draining(id, false)).await?;
                self.engine.messages().tell(id, &Message::Resume);
                Ok(Some("the replica that was to end gets new flows again: the load is high".to_owned()))
            }
            Step::End(id, time_up) => {
                let live = self.engine.call(move |engine| engine.live_flows(id)).await?;
                if live > 0 && !time_up {
                    return Ok(None);
                }
                let count = self.end(&nf.role, id);
                self.change_scaling(&nf.role, |scaling| {
                    (scaling.draining, scaling.beyond) = (None, None);
                    scaling.wanted = count.unwrap_or(scaling.wanted);
                });
                let moved =
                    if live > 0 { format!("; {live} live flows get another one") } else { String::new() };
                Ok(count.map(|count| format!("{count} replicas now: the load is low{moved}")))
            }
        }
    }

    fn change_scaling(&self, role: &str, change: impl FnOnce(&mut Scaling)) {
        if let Some(scaling) = lock(&self.scaling).get_mut(role) {
            change(scaling);
        }
    }

    /// Starts one more replica of a role. Returns how many there are.
    fn grow(&self, role: &str) -> Option<usize> {
        let mut roles = lock(&self.roles);
        let known = roles.get_mut(role)?;
        // Nobody waits for it: a failure is an event, and it is started again.
        known.fill_up(known.replicas.len() + 1, self, &mut Vec::new());
        Some(known.replicas.len())
    }

    /// The slot and the instance of the last replica of a role that is attached.
    fn last_attached(&self, role: &str) -> Option<(u16, InstanceId)> {
        let roles = lock(&self.roles);
        let mut attached = roles.get(role)?.replicas.iter().rev();
        attached.find_map(|replica| Some((replica.slot(), replica.instance()?)))
    }

    /// Ends a replica. Returns how many there are; `None` if it has gone.
    fn end(&self, role: &str, id: InstanceId) -> Option<u16> {
        let mut roles = lock(&self.roles);
        let Role { replicas, .. } = roles.get_mut(role)?;
        let place = replicas.iter().position(|replica| Replica::instance(replica) == Some(id))?;
        replicas.remove(place).stop();
        u16::try_from(replicas.len()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale { most: 3, grow_above: 60, shrink_below: 20, seconds: 2, drain: 10 };

    /// The steps of a role at these seconds with these loads.
    fn steps(scaling: &mut Scaling, loads: &[(u64, f32)]) -> Vec<Step> {
        let start = Instant::now();
        let step = |(second, load): &(u64, f32)| {
            let now = start + Duration::from_secs(*second);
            let step = scaling.follow(Observed { scale: SCALE, fewest: 1, load: Some(*load), now });
            if step == Step::Drain {
                scaling.draining = Some((InstanceId(9), now));
            }
            step
        };
        loads.iter().map(step).collect()
    }

    #[test]
    fn replicas_start_one_by_one_while_the_load_lasts() {
        let mut scaling = Scaling::default();
        let loads = [
            (0, 90.0),
            (1, 10.0),
            (2, 90.0),
            (3, 61.0),
            (4, 90.0),
            (5, 90.0),
            (6, 90.0),
            (7, 90.0),
            (9, 90.0),
            (11, 90.0),
        ];
        let grown: Vec<bool> = steps(&mut scaling, &loads).iter().map(|step| *step == Step::Grow).collect();
        assert_eq!(
            grown,
            [false, false, false, false, true, false, false, true, false, false],
            "three at most"
        );
        assert_eq!(scaling.wanted, 3);
    }

    #[test]
    fn one_ends_after_the_other_when_its_flows_have_or_when_it_is_time() {
        let mut scaling = Scaling { wanted: 3, ..Scaling::default() };
        let loads = [(0, 40.0), (1, 10.0), (2, 10.0), (3, 10.0), (4, 40.0), (12, 40.0), (13, 40.0)];
        let end = |time_up| Step::End(InstanceId(9), time_up);
        let expected =
            [Step::Nothing, Step::Nothing, Step::Nothing, Step::Drain, end(false), end(false), end(true)];
        assert_eq!(steps(&mut scaling, &loads), expected);
        // The load comes back before.
        let mut scaling = Scaling { wanted: 2, ..Scaling::default() };
        let loads = [(0, 10.0), (2, 10.0), (3, 90.0), (5, 90.0), (6, 90.0)];
        let expected = [Step::Nothing, Step::Drain, end(false), Step::Keep(InstanceId(9)), Step::Nothing];
        assert_eq!(steps(&mut scaling, &loads), expected);
        assert_eq!(scaling.wanted, 2);
    }

    #[test]
    fn the_number_stays_within_new_bounds() {
        let count = |wanted, fewest, most| {
            Scaling { wanted, ..Scaling::default() }.count(fewest, Scale { most, ..SCALE })
        };
        assert_eq!([count(0, 2, 4), count(3, 2, 4), count(9, 2, 4)], [2, 3, 4]);
        let mut unattached = Scaling { wanted: 2, ..Scaling::default() };
        let observed = Observed { scale: SCALE, fewest: 1, load: None, now: Instant::now() };
        assert_eq!(unattached.follow(observed), Step::Nothing);
    }
}
