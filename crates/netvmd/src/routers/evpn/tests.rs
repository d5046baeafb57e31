// SPDX-License-Identifier: Apache-2.0
//! The kernel's devices and databases, in a namespace of their own and without an engine.

use std::collections::{BTreeSet, HashMap, HashSet};

use netvm_engine::EvpnUpdate;
use netvm_wire::MacAddr;

use super::local::WantedEntries;
use super::*;
use crate::routers::tests::TestNamespace;

fn network(vni: u32, local: &str) -> Network {
    let local = local.parse().unwrap();
    let (port, underlay) = (PortId(3), RouterId(0));
    Network { port, vni, underlay, underlay_name: None, gate: None, local, udp_port: 4789, mtu: 1450 }
}

fn set(namespace: &TestNamespace, networks: &[Network]) -> Result<(), DeviceError> {
    namespace.namespace().inside(|| Devices::set(networks, &mut Underlays::default())).unwrap()
}

fn links(namespace: &TestNamespace) -> Vec<String> {
    let all = namespace.ip("-o link show");
    let name = |line: &str| line.split(": ").nth(1).unwrap().split('@').next().unwrap().to_owned();
    all.lines().map(name).filter(|name| name != "lo").collect()
}

fn index(namespace: &TestNamespace, device: &str) -> u32 {
    namespace.ip(&format!("-o link show dev {device}")).split(':').next().unwrap().parse().unwrap()
}

#[test]
fn devices_are_made_once_and_those_of_others_stay() {
    let Some(namespace) = TestNamespace::new("evpn") else { return };
    let [first, second] = [network(100, "192.0.2.1"), network(16_777_215, "2001:db8::1")];
    set(&namespace, &[first.clone(), second.clone()]).unwrap();
    let of = |vni: u32| ["br", "vxlan", "local", "peer"].map(|name| format!("{name}{vni}"));
    let all: BTreeSet<String> = links(&namespace).into_iter().collect();
    assert_eq!(all, [of(100), of(16_777_215)].concat().into_iter().collect());
    let shown = namespace.ip("-d link show dev vxlan100");
    for part in
        ["id 100 local 192.0.2.1", "dstport 4789", "nolearning", "master br100", "mtu 1450", "learning off"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(namespace.ip("-d link show dev vxlan16777215").contains("local 2001:db8::1"));
    // Again, as another netvmd does: the same devices, with what a daemon has written into them.
    let before = index(&namespace, "vxlan100");
    set(&namespace, &[first.clone(), second]).unwrap();
    assert_eq!(index(&namespace, "vxlan100"), before);
    // With another address it is another device.
    set(&namespace, &[network(100, "192.0.2.9")]).unwrap();
    assert_ne!(index(&namespace, "vxlan100"), before);
    assert_eq!(links(&namespace).len(), 4);
    set(&namespace, &[]).unwrap();
    assert!(links(&namespace).is_empty(), "{:?}", links(&namespace));
    // Somebody else's.
    namespace.ip("link add br100 type bridge");
    let error = set(&namespace, &[first]).unwrap_err().to_string();
    assert!(error.contains("ip link delete br100"), "{error}");
    set(&namespace, &[]).unwrap();
    assert_eq!(links(&namespace), ["br100"]);
    namespace.ip("link delete br100");
    // Another of its number, in the same namespace.
    namespace.ip("link add other type vxlan id 100 dstport 4789");
    let error = set(&namespace, &[network(100, "192.0.2.1")]).unwrap_err().to_string();
    assert!(error.contains("another `vni`"), "{error}");
    namespace.ip("link delete other");
    set(&namespace, &[]).unwrap();
}

/// The networks of a namespace, and what the kernel tells of them.
struct Followed {
    tables: Tables,
    events: netvm_netlink::Events,
}

impl Followed {
    /// Reads events until `is_so`, and returns the updates.
    fn until(&mut self, is_so: impl Fn(&[EvpnUpdate]) -> bool) -> Vec<EvpnUpdate> {
        let mut all = Vec::new();
        let found = netvm_testing::within(netvm_testing::LIMIT, || {
            let tables = &mut self.tables;
            self.events
                .read(100, |event| {
                    FdbEntry::of_event(&event)
                        .into_iter()
                        .for_each(|(entry, changed)| tables.apply(entry, changed));
                    HostEntry::of_event(&event).into_iter().for_each(|entry| tables.apply_host(entry));
                })
                .unwrap();
            all.extend(self.tables.updates());
            is_so(&all)
        });
        assert!(found, "{all:?}");
        all
    }
}

#[test]
fn what_a_daemon_writes_becomes_updates_and_what_the_switch_learns_entries() {
    let Some(namespace) = TestNamespace::new("evpnfdb") else { return };
    let only = network(100, "192.0.2.1");
    set(&namespace, std::slice::from_ref(&only)).unwrap();
    let sockets = namespace.sockets();
    let mut requests = sockets.requests;
    let mut followed = Followed { tables: Tables::default(), events: sockets.events };
    let found = find(namespace.namespace(), vec![only, network(200, "192.0.2.1")]).unwrap();
    assert_eq!(found.len(), 1, "the other has no devices");
    assert!(followed.tables.set(found.clone()) && !followed.tables.set(found));
    let bridge = |words: &str| {
        let name = namespace.namespace().name();
        let mut command = std::process::Command::new("bridge");
        let status = command.args(["-n", name, "fdb"]).args(words.split(' ')).status().unwrap();
        assert!(status.success(), "{words}");
    };
    let [two, three]: [IpAddr; 2] = ["192.0.2.2", "192.0.2.3"].map(|text| text.parse().unwrap());
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    // As zebra writes them.
    bridge("append 00:00:00:00:00:00 dev vxlan100 dst 192.0.2.2");
    let updates = followed.until(|all| !all.is_empty());
    assert_eq!(updates[0].floods.as_ref().unwrap(), &BTreeSet::from([two]));
    let remote = |last: u8, vtep| {
        bridge(&format!(
            "replace 02:00:00:00:00:0{last} dev vxlan100 dst {vtep} self master extern_learn dynamic"
        ));
    };
    let said = |all: &[EvpnUpdate]| -> HashMap<MacAddr, Option<IpAddr>> {
        all.iter().flat_map(|update| update.macs.clone()).collect()
    };
    remote(7, two);
    followed.until(|all| said(all) == HashMap::from([(mac(7), Some(two))]));
    remote(7, three);
    followed.until(|all| said(all) == HashMap::from([(mac(7), Some(three))]));
    assert_eq!(followed.tables.vteps().map(|(_, vtep)| vtep).collect::<Vec<_>>(), [two, three]);
    // A port of this host sends from it: the entry of the `vxlan` device stays, and counts no more.
    let mut writer = Writer::default();
    let mut write = |tables: &Tables, macs: &[u8]| {
        let macs = macs.iter().map(|last| mac(*last)).collect();
        let wanted = WantedEntries { macs, ..WantedEntries::default() };
        writer.compare(&HashMap::from([(PortId(3), wanted)]), tables);
        assert!(!writer.write(&mut requests).unwrap());
    };
    write(&followed.tables, &[7, 8]);
    followed.until(|all| said(all) == HashMap::from([(mac(7), None)]));
    let local = |followed: &Followed| followed.tables.locals().next().unwrap().macs.clone();
    while local(&followed) != HashSet::from([mac(7), mac(8)]) {
        followed.until(|_| true);
    }
    // A zebra that has just started may have missed the hosts that are there: netvmd writes them again.
    namespace.ip("neighbour replace 10.0.0.7 lladdr 02:00:00:00:00:07 dev br100 nud permanent");
    while followed.tables.locals().next().unwrap().hosts.is_empty() {
        followed.until(|_| true);
    }
    followed.tables.take_unread();
    bridge("append 00:00:00:00:00:00 dev vxlan100 dst 192.0.2.3");
    followed.until(|all| all.iter().any(|update| update.floods.is_some()));
    let unread = followed.tables.take_unread();
    assert_eq!(unread.iter().map(|(_, address, _)| address.to_string()).collect::<Vec<_>>(), ["10.0.0.7"]);
    assert!(followed.tables.take_unread().is_empty());
    // What an earlier netvmd has written stays until its time is over, or this one has seen it.
    bridge("add 02:00:00:00:00:09 dev local100 master static");
    while local(&followed).len() != 3 {
        followed.until(|_| true);
    }
    write(&followed.tables, &[7, 8]);
    assert!(namespace.bridge_has("02:00:00:00:00:09 dev local100"));
    // It goes back; the kernel's entry of this host is not removed in its place.
    remote(7, three);
    followed.until(|all| said(all) == HashMap::from([(mac(7), Some(three))]));
    write(&followed.tables, &[]);
    assert!(namespace.bridge_has("02:00:00:00:00:07 dev vxlan100"));
    assert!(!namespace.bridge_has("02:00:00:00:00:08"));
    // A dump has the same, and tells what has changed unseen.
    let mut requests = namespace.sockets().requests;
    followed.tables.resync(dump(&mut requests).unwrap());
    assert_eq!(followed.tables.updates(), []);
    bridge("del 02:00:00:00:00:07 dev vxlan100 self master");
    followed.tables.resync(dump(&mut requests).unwrap());
    assert_eq!(said(&followed.tables.updates()), HashMap::from([(mac(7), None)]));
}

#[test]
fn a_network_of_a_vrf_sends_by_the_namespace_of_another_router() {
    let (Some(vrf), Some(edge)) = (TestNamespace::new("evpnvrf"), TestNamespace::new("evpnedge")) else {
        return;
    };
    let gate = Some(Gate { place: 1, mac: MacAddr([2, 0, 0, 0, 0x50, 1]) });
    let routed = Network { underlay_name: Some("edge".to_owned()), gate, ..network(5000, "192.0.2.1") };
    let set = |network: &Network, is_there: bool| {
        let networks = std::slice::from_ref(network);
        let open =
            |_: &str| is_there.then(|| edge.namespace().inside(netvm_netlink::Requests::open).flatten());
        let mut underlays = Underlays::open(networks, open).unwrap();
        vrf.namespace().inside(|| Devices::set(networks, &mut underlays)).unwrap()
    };
    let error = set(&routed, false).unwrap_err().to_string();
    assert!(error.contains("waits for router edge"), "{error}");
    set(&routed, true).unwrap();
    let shown = vrf.ip("-d link show dev vxlan5000");
    assert!(shown.contains("link-netns") && shown.contains("master br5000"), "{shown}");
    assert!(vrf.ip("link show dev br5000").contains("02:00:00:00:50:01"));
    // Again, nothing is made, and the kernel keeps the neighbours of the bridge.
    let before = index(&vrf, "vxlan5000");
    vrf.ip("neighbour add 192.0.2.2 lladdr 02:00:00:00:50:02 dev br5000 nud noarp extern_learn");
    set(&routed, true).unwrap();
    assert_eq!(index(&vrf, "vxlan5000"), before);
    assert!(vrf.ip("neighbour show dev br5000").contains("02:00:00:00:50:02"));
    // It sends by its own namespace from now on.
    set(&Network { underlay_name: None, ..routed }, true).unwrap();
    assert!(!vrf.ip("-d link show dev vxlan5000").contains("link-netns"));
}
