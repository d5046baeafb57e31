// SPDX-License-Identifier: Apache-2.0
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::{ClientFiles, ServerFiles, TlsError, TrustFiles};

const YEAR: Lifetime = Lifetime(365);

/// An authority in a folder of its own, with a server and a client.
fn site() -> (tempfile::TempDir, ServerFiles, ClientFiles) {
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::create(folder.path(), "test", YEAR).unwrap();
    let authority = Authority::open(folder.path()).unwrap();
    let names = ["switch.example", "192.0.2.1", "2001:db8::1"].map(str::to_owned);
    let server = authority.server(&names, YEAR).unwrap();
    let client = authority.client("alice", YEAR).unwrap();
    let of_server = ServerFiles {
        certificate: server.certificate_file,
        key: server.key_file,
        client_ca: ca.certificate_file.clone(),
        admits_anonymous: false,
    };
    let of_client =
        ClientFiles { certificate: client.certificate_file, key: client.key_file, ca: ca.certificate_file };
    (folder, of_server, of_client)
}

/// A handshake: the client's certificate as the server sees it, or the error of one side.
fn shake(server: &ServerFiles, client: &ClientFiles, name: &str) -> Result<Certificate, rustls::Error> {
    let own = Some((client.certificate.clone(), client.key.clone()));
    shake_by(server, &TrustFiles { ca: client.ca.clone(), own }, name).map(Option::unwrap)
}

/// The same for a client that may have no certificate.
fn shake_by(
    server: &ServerFiles,
    client: &TrustFiles,
    name: &str,
) -> Result<Option<Certificate>, rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.load().unwrap(), name)?;
    let mut server = ServerConnection::new(Arc::clone(&server.load().unwrap().config))?;
    for _ in 0..4 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut &wire[..]).unwrap();
        server.process_new_packets()?;
        wire.clear();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut &wire[..]).unwrap();
        client.process_new_packets()?;
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    Ok(server.peer_certificates().map(|chain| Certificate::of(&chain[0]).unwrap()))
}

#[test]
fn who_has_no_certificate_is_admitted_on_request_only() {
    let (_folder, server, client) = site();
    let bare = TrustFiles { ca: client.ca.clone(), own: None };
    let refused = shake_by(&server, &bare, "192.0.2.1").unwrap_err();
    assert_eq!(refused, rustls::Error::NoCertificatesPresented);
    let open = ServerFiles { admits_anonymous: true, ..server };
    assert_eq!(shake_by(&open, &bare, "192.0.2.1").unwrap(), None);
    assert_eq!(shake(&open, &client, "192.0.2.1").unwrap().name, "alice");
    // One of another authority is none.
    let (_other, _, foreign) = site();
    let own = Some((foreign.certificate, foreign.key));
    assert!(shake_by(&open, &TrustFiles { ca: client.ca, own }, "192.0.2.1").is_err());
    // No early data and no resumption: nothing that was recorded can be sent again.
    let config = open.load().unwrap().config;
    assert_eq!((config.max_early_data_size, config.send_tls13_tickets), (0, 0));
}

#[test]
fn both_sides_know_each_other_by_every_name() {
    let (_folder, server, client) = site();
    for name in ["switch.example", "192.0.2.1", "2001:db8::1"] {
        let seen = shake(&server, &client, name).unwrap();
        assert_eq!(seen.name, "alice");
        assert!(seen.left().unwrap() > Duration::from_secs(364 * 86_400));
    }
    assert!(shake(&server, &client, "other.example").is_err());
}

#[test]
fn those_of_another_authority_are_refused() {
    let (_one, server, client) = site();
    let (_two, of_other, other) = site();
    let wrong_client = ClientFiles { ca: client.ca.clone(), ..other.clone() };
    assert!(matches!(
        shake(&server, &wrong_client, "switch.example"),
        Err(rustls::Error::InvalidCertificate(_))
    ));
    assert!(matches!(shake(&of_other, &client, "switch.example"), Err(rustls::Error::InvalidCertificate(_))));
    // A server's certificate is none of a client, and the other way round.
    let as_client =
        ClientFiles { certificate: server.certificate.clone(), key: server.key.clone(), ca: client.ca };
    assert!(shake(&server, &as_client, "switch.example").is_err());
}

#[test]
fn keys_are_private_and_nothing_is_overwritten() {
    let (folder, server, client) = site();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let ca_key = folder.path().join("ca.key");
    assert_eq!([&ca_key, &server.key, &client.key].map(|path| mode(path)), [0o600; 3]);
    let before = std::fs::read(&client.certificate).unwrap();
    let authority = Authority::open(folder.path()).unwrap();
    let again = authority.client("alice", YEAR).unwrap_err().to_string();
    assert!(again.contains("alice.crt exists, and is not overwritten"), "{again}");
    assert!(matches!(Authority::create(folder.path(), "x", YEAR), Err(IssueError::Exists(_))));
    std::fs::remove_file(&client.certificate).unwrap();
    assert!(matches!(authority.client("alice", YEAR), Err(IssueError::Exists(_))));
    std::fs::write(&client.certificate, &before).unwrap();
    for bad in ["", "ca", "server", ".hidden", "a/b", "a\nb", &"x".repeat(65)] {
        assert!(matches!(authority.client(bad, YEAR), Err(IssueError::Client(_))), "{bad:?}");
    }
    std::fs::remove_file(&server.certificate).unwrap();
    std::fs::remove_file(&server.key).unwrap();
    for bad in ["", "a b", "*", "http://x"] {
        assert!(matches!(authority.server(&[bad.to_owned()], YEAR), Err(IssueError::Server(_))), "{bad:?}");
    }
}

#[test]
fn bad_files_are_named_with_the_remedy() {
    let (folder, server, client) = site();
    let fails = |files: &ServerFiles, words: &str| {
        let error = files.load().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let path = |name: &str| folder.path().join(name);
    fails(&ServerFiles { key: path("none"), ..server.clone() }, "none: No such file");
    fails(&ServerFiles { certificate: server.key.clone(), ..server.clone() }, "has no certificate");
    fails(&ServerFiles { key: server.certificate.clone(), ..server.clone() }, "every user may read the key");
    fails(&ServerFiles { key: client.key.clone(), ..server.clone() }, "server.crt");
    std::fs::write(path("cut"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    fails(&ServerFiles { client_ca: path("cut"), ..server.clone() }, "malformed certificate");
    std::fs::write(path("long"), vec![b'x'; (1 << 20) + 1]).unwrap();
    fails(&ServerFiles { client_ca: path("long"), ..server.clone() }, "longer than");
    let authority = Authority::open(folder.path()).unwrap();
    let old = authority.client("old", Lifetime(0)).unwrap();
    let expired = ClientFiles { certificate: old.certificate_file, key: old.key_file, ca: client.ca };
    let error = expired.load().unwrap_err();
    assert!(matches!(&error, TlsError::Expired { .. }) && error.to_string().contains("make a new one"));
}
