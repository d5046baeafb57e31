// SPDX-License-Identifier: Apache-2.0
//! What RFC 5780's programs say of the NAT: coturn's server outside, with two addresses, and clients inside.

use std::time::Duration;

use super::super::common::hosts::{are_possible, within};
use super::{Background, Net, PAGE, blocks, has, must};

/// The server's second address.
const SECOND: &str = "203.0.113.3";

/// What a client inside finds out of mapping or filtering, when the server answers.
fn discovered(net: &Net, what: &str) -> String {
    let command = format!("turnutils_natdiscovery {what} -p 3478 {}", super::INTERNET);
    let mut said = String::new();
    within(Duration::from_secs(60), || {
        said = must(&net.app, &command);
        said.contains("NAT with")
    });
    said
}

/// A STUN server with two addresses.
fn server(net: &Net) -> Background {
    net.internet.ip(&format!("address replace {SECOND}/24 dev eth0"));
    Background::inside(
        &net.internet,
        &format!(
            "turnserver -S -n --no-tls --no-dtls -L {} -L {SECOND} --log-file stdout --pidfile /dev/null",
            super::INTERNET
        ),
    )
}

#[test]
fn the_mapping_is_endpoint_independent_and_filtering_is_an_option() {
    if !are_possible() || !has("turnserver") || !has("turnutils_natdiscovery") {
        return;
    }
    let net = Net::new('s');
    // RFC 4787 REQ-1; filtering by default, REQ-8.
    {
        let _daemon = net.start(&net.config(false, ""));
        let _server = server(&net);
        let mapping = discovered(&net, "-m");
        assert!(mapping.contains("NAT with Endpoint Independent Mapping"), "{mapping}");
        let filtering = discovered(&net, "-f");
        assert!(filtering.contains("NAT with Address and Port Dependent Filtering"), "{filtering}");
        stun_client(&net, "Independent Mapping, Port Dependent Filter");
    }
    {
        let pool = "snat = { addresses = \"masquerade\", filtering = \"address-dependent\" }";
        let _daemon = net.start(&net.config(false, "").replace("snat = \"masquerade\"", pool));
        let _server = server(&net);
        let filtering = discovered(&net, "-f");
        assert!(filtering.contains("NAT with Address Dependent Filtering"), "{filtering}");
    }
    // The page's CGNAT lets everybody send to a port that is in use.
    let _daemon = net.start_with_pool(&net.config(false, &blocks(PAGE, "toml")[3]));
    let _server = server(&net);
    let filtering = discovered(&net, "-f");
    assert!(filtering.contains("NAT with Endpoint Independent Filtering"), "{filtering}");
    stun_client(&net, "Independent Mapping, Independent Filter");
}

/// The same by `stun` of RFC 3489's time, another implementation.
fn stun_client(net: &Net, kind: &str) {
    if has("stun") {
        // Its status is a number of the kind.
        let output = net.app.output(&format!("stun {}", super::INTERNET));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(kind), "{text}");
    }
}
