// SPDX-License-Identifier: Apache-2.0
//! Access to the API. File permissions protect the Unix sockets. A token protects the loopback address, whose clients
//! may read and, if configured, capture. Both refuse requests of foreign web pages, because a browser can reach a
//! socket that `ssh -L` forwards.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use netvm_api::Role;

use super::super::Failure;

/// Random bytes of a token.
const BYTES: usize = 32;

/// The token of the loopback address.
#[derive(Clone, Debug)]
pub(in crate::api) struct Token {
    text: Arc<str>,
    file: Arc<Path>,
}

impl Token {
    /// Reads the token from its file; creates a token and the file if the file does not exist.
    ///
    /// # Errors
    /// The kernel's error.
    pub(in crate::api) fn of(file: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) if text.trim().len() >= BYTES => text.trim().to_owned(),
            _ => create(file)?,
        };
        Ok(Self { text: text.into(), file: file.into() })
    }

    /// Whether a request has the token. Compares in constant time.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let Some(given) = given.and_then(|given| given.strip_prefix(b"Bearer ")) else { return false };
        let known = self.text.as_bytes();
        given.len() == known.len() && given.iter().zip(known).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

/// A text that nobody can guess.
///
/// # Errors
/// The kernel's error.
pub(super) fn random_hex() -> io::Result<String> {
    let mut random = [0_u8; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn create(file: &Path) -> io::Result<String> {
    let text = random_hex()?;
    let fresh: PathBuf = file.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&fresh)?;
    to.write_all(format!("{text}\n").as_bytes())?;
    std::fs::rename(fresh, file)?;
    Ok(text)
}

/// The rights of clients of the loopback address.
#[derive(Clone, Debug)]
pub(in crate::api) struct WebRights {
    pub(super) token: Token,
    /// Clients may capture.
    pub(super) may_capture: bool,
}

/// Admits requests that have the token, and gives them their role. The page itself needs no token: it has no secrets,
/// and asks the user for the token.
pub(in crate::api) async fn with_token(
    State(rights): State<WebRights>,
    mut request: Request,
    next: Next,
) -> Response {
    let WebRights { token, may_capture } = rights;
    let place = request.uri().path();
    let is_page = place == "/" || place.starts_with("/web/");
    if !is_page && !token.is_in(request.headers()) {
        let file = token.file.display();
        let message = format!(
            "no token, or a wrong one: send the header `Authorization: Bearer TOKEN`; the token is in {file}"
        );
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"netvmd\"")];
        return (challenge, Failure::new(StatusCode::UNAUTHORIZED, message)).into_response();
    }
    let role = if may_capture { Role::Capture } else { Role::View };
    request.extensions_mut().insert(role);
    next.run(request).await
}

/// Names by which clients of the Unix socket ask for netvmd. HTTP wants a name, and the socket has none.
const OWN_NAMES: [&str; 2] = ["netvmd", "netvm"];

/// Refuses requests that a browser makes for a page of another origin: also those without an `Origin`, for which a page
/// has its own name mean this machine (DNS rebinding).
pub(in crate::api) async fn local_origins(request: Request, next: Next) -> Response {
    match foreign(request.headers()) {
        None => next.run(request).await,
        Some(message) => Failure::new(StatusCode::FORBIDDEN, message).into_response(),
    }
}

/// Why a request is refused. Every browser names the host that it asks; only programs leave it out.
fn foreign(headers: &HeaderMap) -> Option<&'static str> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or_default();
    let is_own = host.is_empty() || is_loopback(host) || OWN_NAMES.contains(&host);
    if !is_own || headers.get_all(header::HOST).iter().count() > 1 {
        return Some(
            "the header `Host` names another machine: ask for localhost, a loopback address or `netvmd`",
        );
    }
    let origin = text(header::ORIGIN)?;
    let authority = origin.strip_prefix("http://").unwrap_or(origin);
    (authority != host || !is_loopback(host)).then_some("a web page of another origin must not use netvmd")
}

fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_matches(['[', ']']);
    name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_compared_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let token = Token::of(&file).unwrap();
        assert_eq!(Token::of(&file).unwrap().text, token.text);
        assert_eq!(token.text.len(), 2 * BYTES);
        let headers = |value: String| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(token.is_in(&headers(format!("Bearer {}", token.text))));
        for wrong in ["Bearer ".to_owned(), format!("Bearer {}x", token.text), token.text.to_string()] {
            assert!(!token.is_in(&headers(wrong)));
        }
        assert!(!token.is_in(&HeaderMap::new()));
    }

    #[test]
    fn requests_in_the_name_of_another_machine_are_foreign() {
        let of = |host: &str, origin: &str| {
            let pair = [(header::HOST, host), (header::ORIGIN, origin)].into_iter();
            let given = pair.filter(|(_, value)| !value.is_empty());
            foreign(&given.map(|(name, value)| (name, value.parse().unwrap())).collect()).is_some()
        };
        for (host, origin) in [
            ("evil", ""),
            ("evil.example", ""),
            ("evil.example:9180", ""),
            ("10.0.0.1", ""),
            ("netvmd.example", ""),
            ("localhost", "http://evil"),
            ("netvmd", "http://netvmd"),
            ("", "null"),
        ] {
            assert!(of(host, origin), "{host} {origin}");
        }
        for (host, origin) in [
            ("", ""),
            ("netvmd", ""),
            ("netvm", ""),
            ("localhost", ""),
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("[::1]:9180", ""),
        ] {
            assert!(!of(host, origin), "{host} {origin}");
        }
    }

    #[test]
    fn loopback_names_are_known() {
        for host in ["localhost:1", "127.0.0.1:9180", "[::1]:80", "localhost"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["example.org", "10.0.0.1:9180", "localhost.example.org", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
