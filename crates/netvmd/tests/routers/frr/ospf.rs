// SPDX-License-Identifier: Apache-2.0
//! OSPF floods thousands of LSAs at once, through the share that routing protocols have of `punt_rate`.

use std::fmt::Write as _;
use std::time::Instant;

use netvm_api::RouterInfo;

use super::daemons::{Net, TIMEOUT};
use super::{Daemons, are_installed};
use crate::common::hosts::{are_possible, within};

/// External routes, each with an LSA of its own (RFC 2328 section 12.4.4).
const ROUTES: u64 = 10_000;

#[test]
fn a_flood_of_lsas_loses_no_packet() {
    if !are_possible() || !are_installed() {
        return;
    }
    let mut net = Net::new('o');
    let mut config = "router id 10.2.0.2;\nprotocol device {}\n\
        protocol ospf v2 {\n ipv4 { import none; export where source = RTS_STATIC; };\n area 0 {\n  \
        interface \"eth0\" { type pointopoint; hello 1; dead 4; };\n };\n}\nprotocol static {\n ipv4;\n"
        .to_owned();
    for n in 0..ROUTES {
        writeln!(config, " route 30.{}.{}.0/24 blackhole;", n / 256, n % 256).unwrap();
    }
    config += "}\n";
    let peer = Daemons::bird(net.peers[0].namespace(), &config);
    let begin = Instant::now();
    let router = net.start_router();
    let learned = || net.routes("prefix=30.0.0.0/8&most=1").more + 1;
    assert!(
        within(TIMEOUT, || learned() == ROUTES),
        "{} routes\n{}\n{}",
        learned(),
        router.log(),
        peer.log()
    );
    println!("{ROUTES} routes by OSPF in the engine after {:?}", begin.elapsed());
    let info: RouterInfo = net.routes("most=1").router;
    let punts: Vec<_> = info.interfaces.iter().flat_map(|interface| &interface.punts).collect();
    let of_protocols = punts.iter().filter(|punt| punt.reason == "routing-protocol");
    let (punted, dropped) =
        of_protocols.fold((0, 0), |sum, punt| (sum.0 + punt.punted, sum.1 + punt.dropped));
    println!("{punted} packets of routing protocols for the router");
    assert!(punted > 100 && dropped == 0, "{punts:?}");
    drop((router, peer));
    net.daemon.purge();
}
