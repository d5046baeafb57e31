// SPDX-License-Identifier: Apache-2.0
//! `netvm cert` and `--host`, without a netvmd. The tests of netvmd use both with one.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::common::{Run, folder, netvm, program, run};

#[test]
fn an_authority_makes_certificates_and_overwrites_nothing() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let cert = |arguments: &[&str]| netvm(&[&["cert"], arguments, &["--folder", path]].concat());
    let error = cert(&["server", "switch.example"]).failed(1);
    assert!(error.contains("ca.crt") && error.contains("`netvm cert ca` makes an authority"), "{error}");
    assert!(cert(&["ca"]).good().contains("ca.key  keep it secret"));
    let text = cert(&["client", "alice", "--role", "operate"]).good();
    assert!(text.ends_with("[[api.remote.client]]\nname = \"alice\"\nrole = \"operate\"\n"), "{text}");
    let made: Value =
        serde_json::from_str(&cert(&["server", "switch.example", "192.0.2.1", "--json"]).good()).unwrap();
    assert_eq!(made["certificate"], format!("{path}/server.crt"));
    assert_eq!(made["fingerprint"].as_str().unwrap().len(), 64);
    for name in ["ca", "alice", "server"] {
        let mode = std::fs::metadata(folder.path().join(format!("{name}.key"))).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let error = cert(&["client", "alice"]).failed(1);
    assert!(error.contains("alice.crt exists, and is not overwritten"), "{error}");
    assert!(cert(&["client", "../x"]).failed(1).contains("is no name for a client"));
    assert!(cert(&["client", "bob", "--role", "root"]).failed(2).contains("the roles are view, capture"));
    assert!(cert(&["client", "bob", "--days", "0"]).failed(2).contains("--days"));
}

#[test]
fn a_password_comes_from_standard_input_and_is_kept_as_a_hash() {
    let folder = folder();
    let [file, typed] = ["passwords", "typed"].map(|name| folder.path().join(name));
    let passwd = |words: &[&str], password: &str| -> Run {
        std::fs::write(&typed, format!("{password}\n")).unwrap();
        let mut command = program();
        command.arg("passwd").args(words).arg("--file").arg(&file);
        run(command.stdin(std::fs::File::open(&typed).unwrap()))
    };
    let text = passwd(&["carol", "--role", "capture"], "correct horse battery").good();
    assert!(text.ends_with("[[api.remote.user]]\nname = \"carol\"\nrole = \"capture\"\n"), "{text}");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.starts_with("carol:$argon2id$") && !kept.contains("horse"), "{kept}");
    assert!(passwd(&["dave"], "short").failed(1).contains("12 characters or more"));
    assert!(passwd(&["a:b"], "correct horse battery").failed(1).contains("is no name for a user"));
    assert!(passwd(&["dave", "--delete"], "").failed(1).contains("has no user `dave`"));
    assert!(passwd(&["carol", "--delete"], "").good().contains("is removed"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
}

#[test]
fn a_host_that_cannot_be_asked_is_named_with_the_remedy() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let asked = |host: &str| -> Run {
        run(program().env("XDG_CONFIG_HOME", path).env("NETVM_HOST", host).arg("status"))
    };
    let error = asked("https://192.0.2.1").failed(1);
    assert!(error.contains("netvm/client.crt: No such file") && error.contains("see --cert"), "{error}");
    for bad in ["192.0.2.1", "http://192.0.2.1", "https://u@192.0.2.1", "https://192.0.2.1/v1", "https://"] {
        let error = asked(bad).failed(1);
        assert!(error.contains(&format!("`{bad}` is no address of a netvmd: write https://")), "{error}");
    }
    let own = folder.path().join("netvm");
    let own = own.to_str().unwrap();
    netvm(&["cert", "ca", "--folder", own]).good();
    netvm(&["cert", "client", "client", "--folder", own]).good();
    // Bound, and closed.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = asked(&format!("https://{address}")).failed(1);
    assert!(error.contains(&format!("cannot reach netvmd at {address}")), "{error}");
    assert!(error.contains("[api.remote]"), "{error}");
    // The socket is asked if it is named.
    let error = run(program().env("NETVM_HOST", "x").args(["--socket", "/none", "status"])).failed(1);
    assert!(error.contains("no netvmd answers on /none"), "{error}");
}
