// SPDX-License-Identifier: Apache-2.0
//! Which replica takes the place of an NF that the engine asks to leave.

use std::time::Duration;

use super::{chain_of, flows_on, rig_of, state, takeovers};
use crate::support::line;
use netvm_engine::InstanceState;
use netvm_model::{Host, NfLimits, NfStart, OnFailure};

/// One NF `a`, of which `replicas` are to take packets.
fn with_replicas(replicas: u16) -> Host {
    let mut host = chain_of(&["a"], OnFailure::Standby);
    host.nfs[0].start = NfStart::Managed {
        scale: None,
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

#[test]
fn a_standby_takes_the_place_of_one_that_is_dismissed_at_once() {
    for host in [line(&["a"], None, false), with_replicas(1)] {
        let mut rig = rig_of(&host);
        let first = rig.attach("a", "forward", false);
        let (second, third) = (rig.attach("a", "forward", true), rig.attach("a", "forward", true));
        assert!(flows_on(&mut rig), "{}", rig.describe());
        rig.engine.dismiss(first);
        let states = [first, second, third].map(|id| state(&rig.engine, id));
        let expected = [InstanceState::Leaving, InstanceState::Active, InstanceState::Standby];
        assert_eq!(states, expected.map(Some), "before the first one has ended");
        // Asked twice, it makes no other standby take over; nor does its end.
        rig.engine.dismiss(first);
        rig.await_end(first);
        assert!(flows_on(&mut rig), "{}", rig.describe());
        assert_eq!(state(&rig.engine, third), Some(InstanceState::Standby));
        assert_eq!(takeovers(&rig), [second]);
    }
}

#[test]
fn no_standby_takes_over_from_one_too_many_or_in_a_role_that_goes() {
    let mut rig = rig_of(&with_replicas(1));
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
