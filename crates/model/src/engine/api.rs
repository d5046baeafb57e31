// SPDX-License-Identifier: Apache-2.0
//! How the API is served: its Unix sockets, the web page, and an address for other machines.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::words::words;

/// What a client of the API may do. Each role may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Read the state.
    View,
    /// Capture and follow packets.
    Capture,
    /// Change what runs, within the configuration: rules, routes, NFs, VMs, connections.
    Operate,
    /// Everything.
    Admin,
}
words!(Role: "view" => View, "capture" => Capture, "operate" => Operate, "admin" => Admin);

/// How the API is served besides its Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ApiConfig {
    /// The loopback address and port of the web page and of metrics, read-only and with a token; `None`: not served.
    pub web: Option<SocketAddr>,
    /// The Unix group whose members may read the state, through a separate socket; `None`: no such socket.
    pub view_group: Option<String>,
    /// The same for members who may also capture packets.
    pub capture_group: Option<String>,
    /// The same for members who may also change what runs.
    pub operate_group: Option<String>,
    /// Whether the web page may capture packets, too.
    pub web_capture: bool,
    /// The file to which changes, captures and refusals are appended as JSON lines; `None`: none.
    pub audit: Option<PathBuf>,
    /// How it is served to other machines; `None`: not.
    pub remote: Option<RemoteApi>,
}

/// The API for other machines: HTTPS, with certificates on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteApi {
    /// The address and port.
    pub listen: SocketAddr,
    /// The server's certificate, a PEM file.
    pub certificate: PathBuf,
    /// Its private key, a PEM file.
    pub key: PathBuf,
    /// The certificates of the authorities of clients, a PEM file.
    pub client_ca: PathBuf,
    /// The clients that are admitted.
    pub clients: Vec<RemoteClient>,
    /// The passwords of users, who need no certificate; `None`: there are no users.
    pub passwords: Option<PathBuf>,
    /// The users that are admitted.
    pub users: Vec<RemoteUser>,
}

impl Default for RemoteApi {
    /// No files, on no address.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 0)),
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            client_ca: PathBuf::new(),
            clients: Vec::new(),
            passwords: None,
            users: Vec::new(),
        }
    }
}

/// A client from another machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteClient {
    /// The common name of its certificate.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The certificates that it may have; empty: any of that name.
    pub fingerprints: Vec<Fingerprint>,
}

/// A user of the web page, who logs in with a password.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteUser {
    /// The name in the file of passwords.
    pub name: String,
    /// What the user may do.
    pub role: Role,
}

/// The SHA-256 of a certificate's DER.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// A text is no fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a fingerprint has 64 hexadecimal digits: `openssl x509 -noout -fingerprint -sha256 -in FILE` prints it"
)]
pub struct ParseFingerprintError;

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    /// In hexadecimal, with colons between the bytes or without.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: Vec<u32> = text.chars().filter(|c| *c != ':').map_while(|c| c.to_digit(16)).collect();
        let length = text.chars().filter(|c| *c != ':').count();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() || length != digits.len() {
            return Err(ParseFingerprintError);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |all, digit| all << 4 | u8::try_from(*digit).unwrap_or_default());
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl RemoteApi {
    /// The role of a client with this certificate; `None`: it is not admitted.
    #[must_use]
    pub fn role_of(&self, name: &str, fingerprint: Fingerprint) -> Option<Role> {
        let client = self.clients.iter().find(|client| client.name == name)?;
        let fits = client.fingerprints.is_empty() || client.fingerprints.contains(&fingerprint);
        fits.then_some(client.role)
    }

    /// The role of a user; `None`: the user is not admitted.
    #[must_use]
    pub fn role_of_user(&self, name: &str) -> Option<Role> {
        self.users.iter().find(|user| user.name == name).map(|user| user.role)
    }
}

impl ApiConfig {
    /// The groups with a socket of their own, and the role of each.
    pub fn groups(&self) -> impl Iterator<Item = (Role, &str)> {
        let groups = [
            (Role::View, &self.view_group),
            (Role::Capture, &self.capture_group),
            (Role::Operate, &self.operate_group),
        ];
        groups.into_iter().filter_map(|(role, group)| Some((role, group.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_openssl_prints_them() {
        let plain = "0123456789abcdef".repeat(4);
        let pairs: Vec<&str> = (0..32).map(|n| &plain[2 * n..2 * n + 2]).collect();
        let read: Fingerprint = pairs.join(":").to_uppercase().parse().unwrap();
        assert_eq!(read.to_string(), plain);
        assert_eq!(plain.parse(), Ok(read));
        for bad in ["", "0123", &plain[1..], &format!("{plain}0"), &plain.replace('a', "g")] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(ParseFingerprintError), "{bad}");
        }
    }

    #[test]
    fn clients_are_admitted_by_name_and_certificate() {
        let client = |name: &str, fingerprints: &[u8]| RemoteClient {
            name: name.to_owned(),
            role: Role::Operate,
            fingerprints: fingerprints.iter().map(|byte| Fingerprint([*byte; 32])).collect(),
        };
        let remote =
            RemoteApi { clients: vec![client("alice", &[]), client("bob", &[1, 2])], ..RemoteApi::default() };
        let role = |name: &str, byte: u8| remote.role_of(name, Fingerprint([byte; 32]));
        assert_eq!([role("alice", 9), role("bob", 2)], [Some(Role::Operate); 2]);
        assert_eq!([role("bob", 3), role("carol", 1), role("", 1)], [None; 3]);
    }
}
