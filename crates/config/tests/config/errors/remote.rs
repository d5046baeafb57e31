// SPDX-License-Identifier: Apache-2.0
//! `[api.remote]`: the API for other machines.

use netvm_model::{Fingerprint, Role};

use crate::{edited, findings, found, host, is, line_of, planned};
use netvm_config::Kind;

const GOOD: &str = r#"
[api.remote]
listen = "0.0.0.0:9480"
certificate = "/tls/server.crt"
key = "/tls/server.key"
client_ca = "/tls/ca.crt"
passwords = "/tls/passwords"

[[api.remote.client]]
name = "alice"
role = "operate"

[[api.remote.client]]
name = "Bob at home"
role = "view"
fingerprints = "AB:0AABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB"

[[api.remote.user]]
name = "carol"
role = "capture"

[[api.remote.user]]
name = "dave"
role = "view"
"#;

#[test]
fn clients_have_roles_and_certificates() {
    let host = host(GOOD);
    let remote = host.api.remote.as_ref().unwrap();
    let [alice, bob] = &remote.clients[..] else { panic!("{remote:?}") };
    assert_eq!((alice.name.as_str(), alice.role, &alice.fingerprints[..]), ("alice", Role::Operate, &[][..]));
    let mut bytes = [0xab; 32];
    bytes[1] = 0x0a;
    assert_eq!((bob.role, &bob.fingerprints[..]), (Role::View, &[Fingerprint(bytes)][..]));
    assert_eq!(remote.passwords.as_deref(), Some(std::path::Path::new("/tls/passwords")));
    let roles = ["carol", "dave", "alice"].map(|name| remote.role_of_user(name));
    assert_eq!(roles, [Some(Role::Capture), Some(Role::View), None]);
    // What is written is read again.
    let again = netvm_config::parse("again", &netvm_config::to_toml(&host)).unwrap().host;
    assert_eq!(again, host);
    let plan = planned(GOOD, &edited(GOOD, "role = \"operate\"", "role = \"admin\""));
    assert!(plan.starts_with("~ api: remote ") && plan.contains("admin"), "{plan}");
}

#[test]
fn each_mistake_is_named_with_its_remedy() {
    for (from, to, kind, remedy) in [
        ("listen = \"0.0.0.0:9480\"", "", "missing_key", "such as `listen ="),
        ("0.0.0.0:9480", "9480", "bad_value", "an address and a port"),
        ("0.0.0.0:9480", "0.0.0.0:0", "bad_value", "an address and a port"),
        ("key = \"/tls/server.key\"", "", "missing_key", "the private key"),
        ("/tls/server.crt", "server.crt", "bad_value", "the absolute path of a PEM file"),
        ("role = \"operate\"", "", "missing_key", "the others are capture"),
        ("role = \"operate\"", "role = \"operator\"", "bad_value", "did you mean `operate`?"),
        ("name = \"alice\"", "name = \"Bob at home\"", "duplicate", "`fingerprints` takes a list"),
        ("name = \"alice\"", "name = \"\"", "bad_value", "the common name (CN)"),
        ("AB:0AAB", "AB:0AA", "bad_value", "64 hexadecimal digits"),
        ("AB:0AAB", "AB:0AAG", "bad_value", "64 hexadecimal digits"),
        ("passwords = \"/tls/passwords\"\n", "", "missing_key", "`netvm passwd` makes it"),
        ("/tls/passwords", "passwords", "bad_value", "the absolute path of a file"),
        ("name = \"carol\"", "name = \"dave\"", "duplicate", "keep one"),
        ("name = \"carol\"", "name = \"carol:x\"", "bad_value", "the name of a user"),
        ("role = \"capture\"", "", "missing_key", "the others are capture"),
        (
            "[[api.remote.client]]\nname = \"alice\"",
            "[[api.remote.clients]]\nname = \"alice\"",
            "unknown_key",
            "`client`",
        ),
    ] {
        let text = edited(GOOD, from, to);
        let findings = findings(&text);
        let is_it = findings.iter().any(|finding| is(finding, kind, remedy));
        assert!(is_it, "{to}: {findings:#?}");
    }
    let text = edited(GOOD, "name = \"alice\"", "name = \"Bob at home\"");
    assert_eq!(found(&text), [(Kind::Duplicate, line_of(&text, "role = \"view\"") - 1)]);
}
