// SPDX-License-Identifier: Apache-2.0
//! Router advertisements of FRR in a virtual router (RFC 4861 section 6.2): a host configures itself by them (RFC
//! 4862).

use std::time::{Duration, Instant};

use netvm_api::{RouterInfo, path};

use super::{Daemons, are_installed};
use crate::common::hosts::{Host, are_possible, run, within};
use crate::site::{Site, start};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The values behind each occurrence of a word.
fn after(text: &str, word: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == word).map(|pair| pair[1].to_owned()).collect()
}

#[test]
fn a_host_gets_its_address_and_route_from_advertisements_of_frr() {
    if !are_possible() || !are_installed() {
        return;
    }
    // The client has no IPv6 address but its link-local one.
    let site = Site {
        router: format!("ra{}", std::process::id()),
        client: Host::new("rac", &["10.1.0.2/24"], &["10.1.0.1"]),
        server: Host::new("ras", &["10.2.0.2/16", "2001:db8:2::2/64"], &["10.2.0.1", "2001:db8:2::1"]),
    };
    let client = &site.client;
    for setting in ["forwarding=0", "accept_ra=1", "accept_ra_defrtr=1", "accept_ra_pinfo=1", "autoconf=1"] {
        let switch = format!("busybox sysctl -w net.ipv6.conf.eth0.{setting}");
        assert!(client.output(&switch).status.success(), "{switch}");
    }
    let mut daemon = start(&[&site]);
    assert!(client.pings("10.2.0.2"), "{}", daemon.log());
    let addresses = || after(&client.ip_output("-6 address show dev eth0 scope global"), "inet6");
    let gateways = || after(&client.ip_output("-6 route show default"), "via");
    assert_eq!((addresses(), gateways()), (Vec::new(), Vec::new()), "nobody advertises yet");

    let config = "interface lan\n no ipv6 nd suppress-ra\n ipv6 nd ra-interval 1\n ipv6 nd ra-lifetime 60\n \
                  ipv6 nd prefix 2001:db8:1::/64\n";
    let begin = Instant::now();
    let frr = Daemons::frr(&site.namespace(), &[("zebra", config.to_owned())]);
    let is_configured = || !addresses().is_empty() && !gateways().is_empty();
    assert!(
        within(TIMEOUT, is_configured),
        "{:?}, {:?}\n{}\n{}",
        addresses(),
        gateways(),
        frr.vtysh("show interface lan"),
        frr.log()
    );
    println!("an address and a default route {:?} after zebra was started", begin.elapsed());
    let addresses = addresses();
    assert!(addresses.len() == 1 && addresses[0].starts_with("2001:db8:1:"), "{addresses:?}");
    assert!(addresses[0].ends_with("/64"), "{addresses:?}");
    let lan = run(&format!("ip -n {} -6 address show dev lan scope link", site.namespace()));
    let own: Vec<String> =
        after(&lan, "inet6").iter().map(|address| address.trim_end_matches("/64").to_owned()).collect();
    assert_eq!(gateways(), own, "the router's link-local address");

    // The engine forwards by what the host configured.
    assert!(client.pings("2001:db8:2::2"), "{}", daemon.log());
    let forwarded = || {
        let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
        routers.iter().find(|router| router.name == site.router).unwrap().forwarded
    };
    let before = forwarded();
    let burst = client.output("busybox ping6 -c 20 -i 0.02 2001:db8:2::2");
    assert!(burst.status.success(), "{burst:?}");
    let count = forwarded() - before;
    assert!(count >= 30, "{count} of 40 packets by the engine");
    drop(frr);
    daemon.purge();
}
