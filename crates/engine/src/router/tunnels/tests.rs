//! VTEPs keep their numbers, and datagrams find their tunnels.

use netvm_model::PortKind;

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
