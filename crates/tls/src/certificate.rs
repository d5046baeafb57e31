// SPDX-License-Identifier: Apache-2.0
//! What netvm reads of a certificate: whom it names, how long it is valid, its fingerprint. TLS checks its signature.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The common name of its subject; empty if it has none.
    pub name: String,
    /// The SHA-256 of its DER.
    pub fingerprint: [u8; 32],
    /// Valid from then on.
    pub not_before: SystemTime,
    /// Valid until then.
    pub not_after: SystemTime,
}

impl Certificate {
    /// Reads a certificate; `None` if it is malformed.
    #[must_use]
    pub fn of(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, der).as_ref());
        Some(Self {
            name: name.unwrap_or_default().to_owned(),
            fingerprint,
            not_before: time(parsed.validity().not_before.timestamp()),
            not_after: time(parsed.validity().not_after.timestamp()),
        })
    }

    /// How long it is still valid; `None`: no longer.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.not_after.duration_since(SystemTime::now()).ok()
    }
}

/// A time of so many seconds after 1970; earlier ones do not matter here.
fn time(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// A time in UTC, such as `2026-11-30T18:32:05Z`.
pub(crate) fn shown(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let stamp = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    stamp.map_or_else(|| "an unknown time".to_owned(), |stamp| stamp.to_string())
}
