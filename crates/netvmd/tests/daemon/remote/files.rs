// SPDX-License-Identifier: Apache-2.0
//! Certificates and keys that change while netvmd runs.

use netvm_api::{Event, EventKind, Status, path};

use super::*;

/// The fingerprint of the certificate that the server shows, as openssl prints it.
fn shown(site: &Site) -> String {
    let script = format!(
        "openssl s_client -connect {} </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256",
        site.address
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The certificate of a new authority instead of a file, by rename as tools do it.
fn replace(site: &Site, from: &Path, names: &[&str]) {
    for name in names {
        let fresh = site.tls.join(format!("{name}.new"));
        std::fs::copy(from.join(name), &fresh).unwrap();
        std::fs::rename(fresh, site.tls.join(name)).unwrap();
    }
}

fn has_event(site: &Site, kind: EventKind) -> bool {
    site.daemon.get::<Vec<Event>>(path::EVENTS).iter().any(|event| event.kind == kind)
}

fn problems(site: &Site) -> String {
    site.daemon.get::<Status>(path::STATUS).problems.join("\n")
}

#[test]
fn new_certificates_are_taken_and_bad_ones_change_nothing() {
    if !succeeds("openssl version") {
        println!("SKIP: no openssl");
        return;
    }
    let Some(site) = Site::new() else { return };
    let before = shown(&site);
    assert!(before.contains("Fingerprint="), "{before}");
    // The key alone: it is not the certificate's.
    let other = site.daemon.folder.0.join("other");
    authority(&other, &["vera"]);
    replace(&site, &other, &["server.key"]);
    site.daemon.until("the problem is shown", |_| problems(&site).contains("the earlier files stay in use"));
    assert!(has_event(&site, EventKind::CertificatesRefused));
    assert_eq!(shown(&site), before);
    assert_eq!(site.status("anna", &["/v1/status"]), 200);
    // And the certificate.
    replace(&site, &other, &["server.crt"]);
    site.daemon.until("it is taken", |_| shown(&site) != before);
    assert!(has_event(&site, EventKind::CertificatesLoaded) && !problems(&site).contains("remote API"));
    // Another authority of clients: who was admitted by the first one is not any more.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let files = ClientFiles { ca: other.join("ca.crt"), ..site.files("vera") };
    let client = netvm_api::Client::remote(&format!("https://{}", site.address), &files).unwrap();
    let mut events = runtime.block_on(client.follow_events(0)).unwrap();
    assert!(runtime.block_on(events.next()).unwrap().is_some());
    replace(&site, &other, &["ca.crt"]);
    let ends = async { while let Ok(Some(_)) = events.next().await {} };
    runtime.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(20), ends).await.unwrap() });
    let error = runtime.block_on(client.status()).unwrap_err().to_string();
    assert!(error.contains("it does not know the authority of this certificate"), "{error}");
    let [certificate, key] = ["crt", "key"].map(|end| other.join(format!("vera.{end}")));
    let fresh = ClientFiles { certificate, key, ..files };
    let client = netvm_api::Client::remote(&format!("https://{}", site.address), &fresh).unwrap();
    assert!(runtime.block_on(client.status()).is_ok());
}

#[test]
fn without_its_files_only_the_remote_api_is_missing() {
    let Some(site) = Site::new() else { return };
    let text = config(&site.daemon.folder, site.address, &CLIENTS);
    let _: netvm_api::ApplyReply = site.daemon.post(path::APPLY, ENGINE.as_str());
    site.daemon.until("it is not served", |_| std::net::TcpStream::connect(site.address).is_err());
    let certificate = site.tls.join("server.crt");
    let aside = site.tls.join("aside");
    std::fs::rename(&certificate, &aside).unwrap();
    let _: netvm_api::ApplyReply = site.daemon.post(path::APPLY, &text);
    site.daemon.until("the problem is shown", |_| problems(&site).contains("server.crt: No such file"));
    std::fs::rename(&aside, &certificate).unwrap();
    site.until_served();
    assert_eq!(problems(&site), "");
}
