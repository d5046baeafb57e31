// SPDX-License-Identifier: Apache-2.0
//! Errors of handshakes in words: what the other side lacks.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// The reason of a failed handshake, or of a connection that the other side has ended for such a reason.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| error.to_string(), words)
}

fn words(error: &Error) -> String {
    let known = match error {
        Error::NoCertificatesPresented => "it has sent no certificate",
        // Another authority of the same name signs with another key.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is not of an authority that is known here"
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "its certificate is not valid yet: are the clocks of both machines right?",
        Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => "its certificate is for another purpose",
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is for another name",
        Error::PeerIncompatible(_) => "it does not speak TLS 1.3",
        Error::InvalidMessage(_) => "it does not speak TLS",
        Error::AlertReceived(alert) => return alert_words(*alert),
        _ => return error.to_string(),
    };
    known.to_owned()
}

/// What the other side says in its alert.
fn alert_words(alert: AlertDescription) -> String {
    let known = match alert {
        AlertDescription::CertificateRequired => "it wants a client certificate",
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it does not know the authority of this certificate"
        }
        AlertDescription::CertificateExpired => {
            "it says that this certificate has expired, or is not valid yet"
        }
        AlertDescription::BadCertificate | AlertDescription::UnsupportedCertificate => {
            "it refuses this certificate, or wants one"
        }
        other => return format!("it has ended the connection ({other:?})"),
    };
    known.to_owned()
}
