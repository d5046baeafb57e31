//! Routes that change while packets are forwarded.

use super::plan::*;
use crate::support::{Rig, port, source};
use netvm_config::model::{EngineConfig, Host, PortConfig, PortKind, RouterId};
use netvm_engine::{DropReason, PortId};
use netvm_router::{NextHopId, Update};
use netvm_wire::MacAddr;

/// The route changes under full load: each packet leaves by the old or the new one, and none is lost.
#[test]
fn routes_change_under_load_without_a_loss() {
    let mut ports: Vec<PortConfig> = vec![port(LAN, "lan", source(60, None, false))];
    ports.extend([WAN, LAN_PUNT, WAN_PUNT].map(|id| port(id, &format!("p{id}"), PortKind::Sink)));
    let dmz = 4;
    ports.extend([dmz, 5].map(|id| port(id, &format!("p{id}"), PortKind::Sink)));
    let mut host = routed(ports, (0, 0));
    host.routers[0].interfaces[0].mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let mut third = host.routers[0].interfaces[1].clone();
    (third.name, third.port, third.punt) = ("dmz".to_owned(), PortId(dmz), PortId(5));
    host.routers[0].interfaces.push(third);
    let to = |interface: u16, spare: u32| Update {
        next_hops: vec![(NextHopId(1), via(interface))],
        routes: vec![
            route("192.168.0.0/16", 1),
            (format!("172.16.{}.0/24", spare % 256).parse().unwrap(), Some(NextHopId(1))),
        ],
    };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..host.clone() }).unwrap();
    rig.engine.update_router(RouterId(0), to(1, 0)).unwrap();
    assert!(rig.until(LIMIT, |engine| engine.routers()[0].routes.0 == 2), "{}", rig.story());
    let free = rig.free_buffers();
    rig.engine.apply(&host).unwrap();
    let mut last = 0;
    for n in 1..60 {
        rig.engine.update_router(RouterId(0), to([1, 2][n as usize % 2], n)).unwrap();
        let (out, before) = ([WAN, dmz][n as usize % 2], rig.sent([WAN, dmz][n as usize % 2]));
        assert!(
            rig.until(LIMIT, |engine| {
                engine.ports().iter().any(|port| port.id == PortId(out) && port.tx_packets > before + 32)
            }),
            "change {n}: {}",
            rig.story()
        );
        last = rig.engine.routers()[0].routes.0;
    }
    assert!(last >= 59, "{last} routes");
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..host.clone() }).unwrap();
    let counters = rig.engine.workers().next().unwrap().counters;
    for reason in DropReason::ALL {
        let drops: u64 = counters.ports.iter().map(|port| port.drops.get(reason)).sum();
        assert_eq!(drops, 0, "{}", reason.name());
    }
    let sent = [WAN, dmz].map(|port| counters.ports[usize::from(port)].tx_packets.get());
    let received = counters.ports[usize::from(LAN)].rx_packets.get();
    assert!(sent.iter().all(|sent| *sent > 1000), "{sent:?}");
    // What came before the interface had its route went to the kernel; none did.
    assert_eq!((received, rig.engine.routers()[0].punted), (sent[0] + sent[1], 0));
    let home = |rig: &Rig| rig.free_buffers() >= free;
    assert!(home(&rig), "{:?} of {free:?}", rig.free_buffers());
    // Without its routes everything goes to the kernel.
    let mut changed = host.clone();
    changed.routers[0].interfaces.swap(1, 2);
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..changed }).unwrap();
    assert_eq!(rig.engine.routers()[0].routes, (0, 0), "places changed");
    rig.engine.apply(&Host::default()).unwrap();
    assert!(rig.engine.update_router(RouterId(0), Update::default()).is_err());
}
