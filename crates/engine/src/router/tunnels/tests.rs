// SPDX-License-Identifier: Apache-2.0
//! VTEPs keep their numbers, and datagrams find their tunnels.

use netvm_model::{PortKind, VxlanControl};

use super::*;

fn host(remotes: &[&[&str]]) -> Host {
    let port = |(n, remotes): (u16, &&[&str])| {
        let config = VxlanConfig {
            vni: 100 + u32::from(n),
            local: "192.0.2.1".parse().unwrap(),
            remotes: remotes.iter().map(|remote| remote.parse().unwrap()).collect(),
            ..VxlanConfig::default()
        };
        PortConfig::new(PortId(n), format!("p{n}"), PortKind::Vxlan(config))
    };
    Host { ports: (0..).zip(remotes).map(port).collect(), ..Host::default() }
}

#[test]
fn a_vtep_keeps_its_number_and_a_removed_one_loses_its_addresses() {
    let mut vteps = Vteps::default();
    let first = host(&[&["192.0.2.2", "192.0.2.3"], &["192.0.2.3"]]);
    vteps.follow(&first);
    let tunnels = Tunnels::of(&first, RouterId(0), &vteps);
    let [two, three] = [0, 1].map(|n| tunnels.of_port(PortId(0)).unwrap().remotes[n].number);
    assert_eq!(tunnels.of_port(PortId(1)).unwrap().remotes[0].number, three, "shared by tunnels");
    let fdb = vteps.addresses.clone().unwrap();
    let mac = |last| netvm_wire::MacAddr([2, 0, 0, 0, 0, last]);
    fdb.learn(0, mac(2), two, 0);
    fdb.learn(0, mac(3), three, 0);
    let second = host(&[&["192.0.2.4", "192.0.2.3"]]);
    vteps.follow(&second);
    let tunnels = Tunnels::of(&second, RouterId(0), &vteps);
    let tunnel = tunnels.of_port(PortId(0)).unwrap();
    assert_eq!(tunnel.place_of(three), Some(1));
    assert_eq!([fdb.lookup(0, mac(2), 0), fdb.lookup(0, mac(3), 0)], [None, Some(three)]);
    assert!(tunnels.of_port(PortId(1)).is_none() && !Tunnels::of(&second, RouterId(1), &vteps).are_there());
    vteps.follow(&Host::default());
    assert!(vteps.addresses.is_none());
}

#[test]
fn a_datagram_is_for_the_tunnel_of_its_address_port_and_network() {
    let (host, mut vteps) = (host(&[&["192.0.2.2"], &["192.0.2.2"]]), Vteps::default());
    vteps.follow(&host);
    let tunnels = Tunnels::of(&host, RouterId(0), &vteps);
    let local = "192.0.2.1".parse::<std::net::IpAddr>().unwrap().into();
    assert!(tunnels.end_at(local, 4789) && !tunnels.end_at(local, 4790));
    let find = |port, vni| tunnels.find((local, port, Vni::new(vni).unwrap())).map(|tunnel| tunnel.port);
    assert_eq!([find(4789, 100), find(4789, 101)], [Some(PortId(0)), Some(PortId(1))]);
    assert_eq!([find(4789, 102), find(4790, 100)], [None, None]);
    let tunnel = tunnels.of_port(PortId(0)).unwrap();
    assert_eq!([tunnel.longest(1500), tunnel.longest(9000)], [1450 + 14, 1500 + 14]);
}

#[test]
fn evpn_says_vteps_and_addresses_until_the_network_goes() {
    let evpn = |vni: u32| {
        let mut host = host(&[&["192.0.2.7"], &[]]);
        let local = "192.0.2.1".parse().unwrap();
        let config = VxlanConfig { vni, local, control: VxlanControl::Evpn, ..VxlanConfig::default() };
        host.ports[1].kind = PortKind::Vxlan(config);
        host
    };
    let (first, mut vteps) = (evpn(500), Vteps::default());
    vteps.follow(&first);
    let [two, three]: [IpAddr; 2] = ["192.0.2.2", "192.0.2.3"].map(|text| text.parse().unwrap());
    let mac = |last| netvm_wire::MacAddr([2, 0, 0, 0, 0, last]);
    let update = |floods: Option<&[IpAddr]>, macs: &[(u8, Option<IpAddr>)]| EvpnUpdate {
        port: PortId(1),
        vni: 500,
        floods: floods.map(|all| all.iter().copied().collect()),
        macs: macs.iter().map(|(last, vtep)| (mac(*last), *vtep)).collect(),
        hosts: Vec::new(),
    };
    assert_eq!(vteps.update(&EvpnUpdate { vni: 501, ..update(None, &[]) }, &first), Err(UnknownNetwork(501)));
    assert_eq!(
        vteps.update(&EvpnUpdate { port: PortId(0), ..update(None, &[]) }, &first),
        Err(UnknownNetwork(500))
    );
    assert_eq!(vteps.update(&update(Some(&[two]), &[(1, Some(two)), (2, Some(three))]), &first), Ok(true));
    // Addresses that come and go at known VTEPs need no snapshot.
    assert_eq!(
        vteps.update(&update(None, &[(3, Some(three)), (1, None), (4, Some(two))]), &first),
        Ok(false)
    );
    let remotes = |vteps: &Vteps, host: &Host| {
        let tunnels = Tunnels::of(host, RouterId(0), vteps);
        let tunnel = tunnels.of_port(PortId(1)).unwrap().clone();
        let all: Vec<IpAddr> = tunnel.remotes.iter().map(|vtep| vtep.address.to_ip()).collect();
        (all, tunnel.floods)
    };
    let behind = |vteps: &Vteps, last: u8| {
        let number = vteps.addresses.as_ref()?.lookup(1, mac(last), 0)?;
        vteps.numbers.iter().find(|(_, used)| **used == number).map(|(vtep, _)| vtep.to_ip())
    };
    assert_eq!(remotes(&vteps, &first), (vec![two, three], 1));
    assert_eq!([1, 2, 3, 4].map(|last| behind(&vteps, last)), [None, Some(three), Some(three), Some(two)]);
    // Another table of another size has them, too; another configuration keeps them.
    let mut larger = first.clone();
    larger.switch.macs *= 2;
    vteps.follow(&larger);
    assert_eq!(remotes(&vteps, &larger), (vec![two, three], 1));
    assert_eq!([1, 2, 4].map(|last| behind(&vteps, last)), [None, Some(three), Some(two)]);
    // The last address behind a VTEP goes.
    assert_eq!(vteps.update(&update(None, &[(2, Some(two))]), &larger), Ok(false));
    assert_eq!(vteps.update(&update(None, &[(3, None)]), &larger), Ok(true));
    assert_eq!((remotes(&vteps, &larger), behind(&vteps, 2)), ((vec![two], 1), Some(two)));
    assert_eq!(vteps.remotes_of(&larger.ports[1]), [two]);
    // Another network has none of them.
    let other = evpn(600);
    vteps.follow(&other);
    assert_eq!((remotes(&vteps, &other), behind(&vteps, 2)), ((vec![], 0), None));
    assert_eq!(vteps.update(&update(None, &[(2, Some(two))]), &other), Err(UnknownNetwork(500)));
}

#[test]
fn addresses_that_find_no_room_are_counted() {
    let mut host = host(&[&[]]);
    host.switch.macs = 16;
    if let PortKind::Vxlan(config) = &mut host.ports[0].kind {
        config.control = VxlanControl::Evpn;
    }
    let mut vteps = Vteps::default();
    vteps.follow(&host);
    let vtep = Some("192.0.2.2".parse().unwrap());
    let macs = (0..10).map(|n| (netvm_wire::MacAddr([2, 0, 0, 0, 1, n]), vtep)).collect();
    let update = EvpnUpdate { port: PortId(0), vni: 100, floods: None, macs, hosts: Vec::new() };
    assert_eq!(vteps.update(&update, &host), Ok(true));
    assert_eq!(vteps.networks_mut().take_refused(PortId(0)), 2, "half of the table is for them");
    assert_eq!(vteps.networks_mut().take_refused(PortId(0)), 0);
}
