// SPDX-License-Identifier: Apache-2.0
//! Certificates and keys in files (PEM).

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificate::{Certificate, shown};

/// Largest file in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Permissions of others, who must not read keys.
const OTHERS: u32 = 0o007;

/// A file of TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It is too long.
    #[error("{} is longer than {MAX_FILE} bytes: name a file with certificates or a key in PEM", .0.display())]
    TooLong(PathBuf),
    /// It has no certificate.
    #[error("{} has no certificate in PEM (-----BEGIN CERTIFICATE-----)", .0.display())]
    NoCertificate(PathBuf),
    /// A certificate in it is malformed.
    #[error("{} has a malformed certificate: make it anew", .0.display())]
    Malformed(PathBuf),
    /// It has no private key.
    #[error("{} has no private key in PEM (-----BEGIN PRIVATE KEY-----)", .0.display())]
    NoKey(PathBuf),
    /// Everybody may read the key.
    #[error("every user may read the key {path}: `chmod 600 {path}`", path = .0.display())]
    OpenKey(PathBuf),
    /// The certificate is no longer valid.
    #[error("the certificate {} has expired ({at}): make a new one", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// When.
        at: String,
    },
    /// The certificate is not valid yet.
    #[error("the certificate {} is valid from {at} on: is this machine's clock right?", path.display())]
    Early {
        /// The file.
        path: PathBuf,
        /// When.
        at: String,
    },
    /// rustls refuses it.
    #[error("cannot use {}: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// rustls refuses the authority's certificates.
    #[error("cannot use the certificates of {} as those of an authority: {why}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        why: rustls::server::VerifierBuilderError,
    },
}

/// A chain of certificates, the holder's own first.
pub(crate) fn chain(path: &Path) -> Result<(Vec<CertificateDer<'static>>, Certificate), TlsError> {
    let (text, _) = read(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|_| TlsError::Malformed(path.to_owned()))?;
    let own = chain.first().ok_or_else(|| TlsError::NoCertificate(path.to_owned()))?;
    let own = valid(path, own)?;
    Ok((chain, own))
}

/// The certificates of authorities, and the fingerprint of each.
pub(crate) fn authorities(path: &Path) -> Result<(RootCertStore, Vec<[u8; 32]>), TlsError> {
    let (text, _) = read(path)?;
    let (mut store, mut fingerprints) = (RootCertStore::empty(), Vec::new());
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|_| TlsError::Malformed(path.to_owned()))?;
        // TLS does not look at the time of an authority's own certificate.
        fingerprints.push(valid(path, &certificate)?.fingerprint);
        store.add(certificate).map_err(|source| TlsError::Unusable { path: path.to_owned(), source })?;
    }
    if fingerprints.is_empty() {
        return Err(TlsError::NoCertificate(path.to_owned()));
    }
    Ok((store, fingerprints))
}

/// A private key that not everybody may read.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let (text, metadata) = read(path)?;
    if metadata.permissions().mode() & OTHERS != 0 {
        return Err(TlsError::OpenKey(path.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| TlsError::NoKey(path.to_owned()))
}

/// A certificate that is valid now.
fn valid(path: &Path, der: &CertificateDer<'_>) -> Result<Certificate, TlsError> {
    let certificate = Certificate::of(der).ok_or_else(|| TlsError::Malformed(path.to_owned()))?;
    if certificate.left().is_none() {
        return Err(TlsError::Expired { path: path.to_owned(), at: shown(certificate.not_after) });
    }
    if certificate.not_before > SystemTime::now() {
        return Err(TlsError::Early { path: path.to_owned(), at: shown(certificate.not_before) });
    }
    Ok(certificate)
}

fn read(path: &Path) -> Result<(Vec<u8>, Metadata), TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut text = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(TlsError::TooLong(path.to_owned()));
    }
    Ok((text, metadata))
}
