//! What the engine shows.

mod support;

use std::time::Duration;

use netvm_config::model::{EngineConfig, PortKind, SourceConfig};
use support::{Rig, line};

#[test]
fn nf_process() {
    support::be_an_nf();
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn what_a_device_lost_is_shown() {
    let mut host = line(&[], None, false);
    let source = |rate| SourceConfig { size: 60, flows: 1, rate, lossless: false, count: None };
    // More than any core makes.
    host.ports[0].kind = PortKind::Source(source(Some(10_000_000_000)));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(SOON, |engine| engine.ports()[0].rx_dropped > 10_000_000), "{}", rig.story());
    assert_eq!(rig.engine.ports()[1].rx_dropped, 0, "a sink receives nothing");

    host.ports[0].kind = PortKind::Source(source(None));
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(SOON, |engine| engine.ports()[1].tx_packets > 10_000), "{}", rig.story());
    assert_eq!(rig.engine.ports()[0].rx_dropped, 0, "flat out is never late");
}

#[test]
fn threads_show_their_stations() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a", "b"], None, false)).unwrap();
    let ids = [rig.attach("a", "forward", false), rig.attach("b", "forward", false)];
    let stations = |rig: &Rig| -> Vec<u8> {
        rig.engine.instances().iter().flat_map(|view| &view.threads).map(|thread| thread.station.0).collect()
    };
    assert_eq!(stations(&rig), [1, 2], "station 0 is the engine");
    rig.kill(ids[0]);
    assert!(rig.until(SOON, |engine| !engine.is_settling()), "{}", rig.story());
    assert_eq!(stations(&rig), [2]);
    rig.attach("a", "forward", false);
    assert_eq!(stations(&rig), [2, 1]);
}
