// SPDX-License-Identifier: Apache-2.0
//! etcd by TLS.

use std::process::Command;
use std::sync::Arc;

use netvm_tls::{Authority, Lifetime};

use crate::common::Folder;
use crate::common::hosts::succeeds;
use crate::site::{Etcd, config, config_with, launch_host};

const DAY: Lifetime = Lifetime(1);

#[test]
fn etcd_is_trusted_by_the_authority_that_is_given() {
    let folder = Arc::new(Folder::new());
    let file = |name: &str| folder.0.join(name).display().to_string();
    for name in ["own", "other"] {
        Authority::create(&folder.0.join(name), name, DAY).unwrap();
    }
    Authority::open(&folder.0.join("own")).unwrap().server(&["127.0.0.1".to_owned()], DAY).unwrap();
    let (ca, other) = (file("own/ca.crt"), file("other/ca.crt"));
    let server =
        ["--cert-file".to_owned(), file("own/server.crt"), "--key-file".to_owned(), file("own/server.key")];
    let Some(etcd) = Etcd::start_with(&folder, &server, &["--cacert".to_owned(), ca.clone()]) else { return };
    let first = etcd.configure("a", &config(20));
    let url = etcd.url();
    let launch = |ca: &str| launch_host(&Arc::new(Folder::new()), "a", &["--etcd", &url, "--etcd-ca", ca]);
    let mut mistaken = launch(&other);
    mistaken.await_log("its certificate is not of an authority that is known here");
    drop(mistaken);
    let host = launch(&ca);
    etcd.until_runs("a", first);
    etcd.until_runs("a", etcd.configure("a", &config_with("two", 20)));
    drop(host);
}

#[test]
fn etcd_may_want_the_certificate_of_a_host() {
    if !succeeds("openssl version") {
        println!("SKIP: no openssl");
        return;
    }
    let folder = Arc::new(Folder::new());
    let file = |name: &str| folder.0.join(name).display().to_string();
    Authority::create(&folder.0, "own", DAY).unwrap();
    Authority::open(&folder.0).unwrap().client("host-a", DAY).unwrap();
    // etcd's gateway is its own client, so its certificate is for both.
    std::fs::write(file("ext"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        .unwrap();
    let script = "cd \"$0\" && openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout etcd.key \
                  -subj /CN=etcd -out etcd.csr && openssl x509 -req -in etcd.csr -CA ca.crt -CAkey ca.key \
                  -CAcreateserial -days 1 -extfile ext -out etcd.crt";
    let made = Command::new("sh").args(["-c", script]).arg(&folder.0).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (ca, cert, key) = (file("ca.crt"), file("host-a.crt"), file("host-a.key"));
    let pair = |pairs: &[(&str, &str)]| -> Vec<String> {
        pairs.iter().flat_map(|(option, file)| [(*option).to_owned(), (*file).to_owned()]).collect()
    };
    let (etcd_cert, etcd_key) = (file("etcd.crt"), file("etcd.key"));
    let mut server =
        pair(&[("--cert-file", &etcd_cert), ("--key-file", &etcd_key), ("--trusted-ca-file", &ca)]);
    server.push("--client-cert-auth".to_owned());
    let trust = pair(&[("--cacert", &ca), ("--cert", &cert), ("--key", &key)]);
    let Some(etcd) = Etcd::start_with(&folder, &server, &trust) else { return };
    let first = etcd.configure("a", &config(20));
    let url = etcd.url();
    let launch = |more: &[&str]| {
        let options = [&["--etcd", &url, "--etcd-ca", &ca], more].concat();
        launch_host(&Arc::new(Folder::new()), "a", &options)
    };
    let mut without = launch(&[]);
    without.await_log("has no configuration to start with");
    let log = without.log();
    assert!(log.contains("it refuses this certificate, or wants one"), "{log}");
    drop(without);
    let host = launch(&["--etcd-cert", &cert, "--etcd-key", &key]);
    etcd.until_runs("a", first);
    etcd.until_runs("a", etcd.configure("a", &config_with("two", 20)));
    drop(host);
}
