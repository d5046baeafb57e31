// SPDX-License-Identifier: Apache-2.0
//! A full Internet table by BGP: minutes with a debug build, so only `./dev check-release` runs it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use netvm_workload::routes;

use super::daemons::{Net, Outage};
use super::{Daemons, are_installed};
use crate::common::download::PORT;
use crate::common::hosts::{Host, are_possible, run, within};

/// Set by `./dev check-release`.
const WANTED: &str = "NETVM_TEST_FULL_TABLE";
const TIMEOUT: Duration = Duration::from_secs(600);

/// The IPv4 prefixes of a full table; `None` and a message if they are not wanted.
fn prefixes() -> Option<Vec<String>> {
    if std::env::var_os(WANTED).is_none() {
        println!("SKIP: {WANTED} is not set: `./dev check-release` sets it");
        return None;
    }
    Some(routes::v4(routes::V4_COUNT, routes::SEED).iter().map(ToString::to_string).collect())
}

fn announcing(host: &Host, prefixes: &[String]) -> Daemons {
    let mut config = "router id 10.2.0.2;\nprotocol device {}\n\
        protocol bgp blue {\n local 10.2.0.2 as 65002; neighbor 10.2.0.1 as 65000; connect delay time 1;\n \
        ipv4 { import none; export where source = RTS_STATIC; };\n}\nprotocol static {\n ipv4;\n"
        .to_owned();
    prefixes.iter().for_each(|prefix| writeln!(config, " route {prefix} blackhole;").unwrap());
    config += "}\n";
    Daemons::bird(host.namespace(), &config)
}

fn bird(net: &Net) -> Daemons {
    Daemons::bird(
        &net.namespace(),
        "router id 10.2.0.1;\nprotocol device {}\n\
         protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }\n\
         protocol bgp peer {\n local 10.2.0.1 as 65000; neighbor 10.2.0.2 as 65002; connect delay time 1;\n \
         ipv4 { import all; export none; };\n}\n",
    )
}

fn frr(net: &Net) -> Daemons {
    let bgp = "router bgp 65000\n no bgp ebgp-requires-policy\n bgp router-id 10.2.0.1\n \
               neighbor 10.2.0.2 remote-as 65002\n neighbor 10.2.0.2 timers connect 1\n";
    Daemons::frr(&net.namespace(), &[("bgpd", bgp.to_owned())])
}

/// Starts daemons in the router.
type Start = fn(&Net) -> Daemons;

/// A router with these daemons learns the prefixes. The time until the engine has them.
fn learned(mark: char, prefixes: &[String], start: Start) -> Duration {
    let mut net = Net::new(mark);
    net.peers[0].echo([30, 0, 0, 1].into(), PORT);
    run_in(&net, "route add 30.0.0.1/32 via 10.2.0.2");
    let peer = announcing(&net.peers[0], prefixes);
    let flow = Outage::watch(&net.client);
    let begin = Instant::now();
    let router = start(&net);
    // Of the prefix, and of longer ones below it, which a full table has.
    let resolved = |prefix: &String| {
        let gateways = net.gateways(prefix);
        !gateways.is_empty() && gateways.iter().all(|gateway| gateway == "10.2.0.2")
    };
    let is_learned = || {
        // Reading the routes takes time from those who learn them.
        std::thread::sleep(Duration::from_millis(500));
        let (first, last) = (prefixes.first().unwrap(), prefixes.last().unwrap());
        resolved(first) && resolved(last) && net.routes("family=4&most=1").more >= prefixes.len() as u64
    };
    assert!(within(TIMEOUT, is_learned), "{}\n{}\n{}", router.log(), peer.log(), net.daemon.log());
    let took = begin.elapsed();
    let longest = flow.end();
    println!("forwarding meanwhile: no flow went without an answer for longer than {longest:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    drop((router, peer));
    net.daemon.purge();
    took
}

#[test]
fn a_full_table_by_bgp_is_in_the_engine_soon() {
    let Some(prefixes) = prefixes() else { return };
    if !are_possible() || !are_installed() {
        return;
    }
    let daemons: [(char, &str, Start); 2] = [('f', "BIRD", bird), ('g', "FRR", frr)];
    for (mark, name, start) in daemons {
        let took = learned(mark, &prefixes, start);
        println!("{} routes by BGP of {name} are in the engine after {took:?}", prefixes.len());
        // A debug build is slower.
        assert!(cfg!(debug_assertions) || took < Duration::from_secs(30), "{name}: {took:?}");
    }
}

fn run_in(net: &Net, words: &str) {
    run(&format!("ip -n {} {words}", net.namespace()));
}
