// SPDX-License-Identifier: Apache-2.0
//! Applying a host: live, as a whole, or not at all.

use std::time::Duration;

use crate::support::{Rig, chain, group, line, nf, nothing_is_out, port, rule, source, with_workers};
use netvm_attach::Hello;
use netvm_engine::{AdmitError, ApplyError};
use netvm_model::{EngineConfig, OnFailure, PortKind};

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn another_chain_comes_and_goes_and_the_first_loses_nothing() {
    const COUNT: u64 = 3_000_000;
    let host = line(&["a"], Some(COUNT), true);
    let mut more = host.clone();
    more.groups.push(group(1, 1024, 2048));
    more.ports.push(port(2, "in2", source(60, None, false)));
    more.ports.push(port(3, "out2", PortKind::Sink));
    more.nfs.push(nf(1, "b", 1));
    more.chains.push(chain(1, &[1], OnFailure::Bypass, 3));
    more.rules.push(rule(2, 1));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "forward", false);
    for _ in 0..3 {
        rig.engine.apply(&more).unwrap();
        let b = rig.attach("b", "forward", false);
        assert!(rig.until(TIMEOUT, |engine| engine.chains()[1].left > 0), "{}", rig.describe());
        rig.engine.apply(&host).unwrap();
        rig.await_end(b);
        assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
    }
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left == COUNT), "{}", rig.describe());
    assert!(rig.engine.chains()[0].drops.is_empty(), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, nothing_is_out));
}

#[test]
fn what_cannot_be_leaves_everything_as_it_was() {
    let mut host = line(&["a"], None, false);
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "forward", false);
    let mut no_port = host.clone();
    no_port.groups.push(group(1, 1024, 2048));
    no_port.ports[0].kind = PortKind::AfXdp { interface: "nv-none".to_owned(), generic: false };
    let error = rig.engine.apply(&no_port).unwrap_err();
    assert!(matches!(error, ApplyError::Port(_)) && error.to_string().contains("port in"), "{error}");
    let mut too_long = host.clone();
    too_long.ports[0].kind = source(2000, None, false);
    let error = rig.engine.apply(&too_long).unwrap_err().to_string();
    assert!(error.contains("buffer_size"), "{error}");
    let mut too_large = host.clone();
    too_large.groups.push(group(1, 16_000_000, 65_472));
    let error = rig.engine.apply(&too_large).unwrap_err().to_string();
    assert!(error.contains("MiB available"), "{error}");
    let mut other_buffers = host.clone();
    other_buffers.groups[0].buffers = 8192;
    assert!(matches!(rig.engine.apply(&other_buffers), Err(ApplyError::NeedsRestart { .. })));
    host.engine = with_workers(&host.engine);
    assert_eq!(*rig.engine.host(), host);
    let before = rig.sent(1);
    assert!(rig.until(TIMEOUT, |engine| engine.ports()[1].tx_packets > before + 1000), "{}", rig.describe());
}

#[test]
fn nfs_that_cannot_be_let_in_are_told_why() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a"], None, false)).unwrap();
    let hello = |layout, role: &str, threads| Hello {
        layout,
        role: role.into(),
        name: role.into(),
        threads,
        counters: vec![],
        offloads: false,
    };
    let layout = netvm_region::LAYOUT_VERSION;
    let error = rig.engine.admit(&hello(layout + 1, "a", 1), false).unwrap_err();
    assert!(matches!(error, AdmitError::Layout { .. }) && error.to_string().contains("rebuild"), "{error}");
    let oldest = netvm_region::OLDEST_LAYOUT;
    assert!(matches!(rig.engine.admit(&hello(oldest - 1, "a", 1), false), Err(AdmitError::Layout { .. })));
    let error = rig.engine.admit(&hello(layout, "b", 1), false).unwrap_err();
    assert!(error.to_string().contains("there is no role `b`: the configuration has a"), "{error}");
    assert!(rig.engine.admit(&hello(layout, "a", 0), false).is_err());
    assert!(rig.engine.admit(&hello(layout, "a", 17), false).is_err());
    // NF threads run out, refusals leak none, and they come back when NFs leave.
    let mut let_in = Vec::new();
    let full = loop {
        match rig.engine.admit(&hello(layout, "a", 16), false) {
            Ok(id) => let_in.push(id),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, AdmitError::Full { .. }) && let_in.len() == 3, "{full}");
    for id in let_in {
        rig.engine.departed(id);
    }
    assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()));
    assert!(rig.engine.admit(&hello(layout, "a", 16), false).is_ok());
}
