//! Which replica takes the place of an NF that the engine asks to leave.

use std::time::Duration;

use crate::support::{Rig, line};
use netvm_config::model::{EngineConfig, Host, NfLimits, NfStart, OnFailure};
use netvm_engine::{Engine, InstanceId, InstanceState, Notice};

const SOON: Duration = Duration::from_secs(20);

/// One NF `a`, of which `replicas` are to take packets.
fn with_replicas(replicas: u16) -> Host {
    let mut host = line(&["a"], None, false);
    host.chains[0].on_failure = OnFailure::Standby;
    host.nfs[0].start = NfStart::Managed {
        command: vec!["a".to_owned()],
        user: "nobody".to_owned(),
        replicas,
        standby: 1,
        cores: Vec::new(),
        environment: Vec::new(),
        threads: 1,
        limits: NfLimits::default(),
    };
    host
}

fn state(engine: &Engine, id: InstanceId) -> Option<InstanceState> {
    engine.instances().iter().find(|view| view.id == id).map(|view| view.state)
}

fn takeovers(rig: &Rig) -> Vec<InstanceId> {
    let of = |notice: &Notice| match notice {
        Notice::StandbyTookOver { instance, .. } => Some(*instance),
        _ => None,
    };
    rig.notices.iter().filter_map(of).collect()
}

#[test]
fn a_standby_takes_the_place_of_one_that_is_dismissed_at_once() {
    for host in [line(&["a"], None, false), with_replicas(1)] {
        let mut rig = Rig::new(&EngineConfig::default());
        rig.engine.apply(&host).unwrap();
        let first = rig.attach("a", "forward", false);
        let (second, third) = (rig.attach("a", "forward", true), rig.attach("a", "forward", true));
        assert!(rig.until(SOON, |engine| engine.chains()[0].left > 1000), "{}", rig.story());
        rig.engine.dismiss(first);
        let states = [first, second, third].map(|id| state(&rig.engine, id));
        let expected = [InstanceState::Leaving, InstanceState::Active, InstanceState::Standby];
        assert_eq!(states, expected.map(Some), "before the first one has ended");
        // Asked twice, it makes no other standby take over; nor does its end.
        rig.engine.dismiss(first);
        let index = rig.nfs.iter().position(|nf| nf.id == first).unwrap();
        let mut leaver = rig.nfs.remove(index);
        assert!(rig.until(SOON, |_| leaver.child.try_wait().unwrap().is_some()), "{}", rig.story());
        rig.engine.departed(first);
        let left = rig.engine.chains()[0].left;
        assert!(rig.until(SOON, |engine| engine.chains()[0].left > left + 1000), "{}", rig.story());
        assert_eq!(state(&rig.engine, third), Some(InstanceState::Standby));
        assert_eq!(takeovers(&rig), [second]);
    }
}

#[test]
fn no_standby_takes_over_from_one_too_many_or_in_a_role_that_goes() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&with_replicas(1)).unwrap();
    let (first, second) = (rig.attach("a", "forward", false), rig.attach("a", "forward", false));
    let third = rig.attach("a", "forward", true);
    rig.engine.dismiss(first);
    assert_eq!(state(&rig.engine, third), Some(InstanceState::Standby), "one still takes packets");
    let without = Host { groups: with_replicas(1).groups, ..Host::default() };
    rig.engine.apply(&without).unwrap();
    assert_eq!(state(&rig.engine, second), Some(InstanceState::Leaving));
    assert_eq!(state(&rig.engine, third), Some(InstanceState::Standby), "told to stop");
    rig.until(Duration::from_millis(20), |_| false);
    assert_eq!(takeovers(&rig), []);
}
