//! etcd by TLS.

use std::sync::Arc;

use netvm_tls::{Authority, Lifetime};

use crate::common::Folder;
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
