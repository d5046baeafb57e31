// SPDX-License-Identifier: Apache-2.0
//! A small certificate authority, for sites that have none: a key and a certificate in a folder. Keys are P-256 and
//! only their owner may read them. Nothing is overwritten.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::certificate::Certificate;

/// Clocks of other machines may be slow by so much.
const CLOCK_SKEW: Duration = Duration::from_secs(300);
/// The names of the authority's files, without their ends.
const AUTHORITY: &str = "ca";
/// The same of a server's.
const SERVER: &str = "server";

/// A certificate was not made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// There is a file of this name.
    #[error("{} exists, and is not overwritten: choose another --folder, or move it away", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The authority's files cannot be read.
    #[error("cannot read {}: {source} (`netvm cert ca` makes an authority)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The authority's files are no certificate and key.
    #[error("{} is not usable: {source}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rcgen::Error,
    },
    /// A name cannot be in a certificate.
    #[error(
        "`{0}` is no name for a client: use 1 to 64 of the characters A-Z a-z 0-9 _ - . @, no dot first, not `ca` or `server`"
    )]
    Client(String),
    /// A name cannot be a server's.
    #[error("`{0}` is no name for a server: give DNS names and IP addresses by which clients reach it")]
    Server(String),
    /// The certificate cannot be made.
    #[error("cannot make the certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// How long a certificate is valid, in days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(pub u16);

/// A certificate that was made, and its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// What is in it.
    pub certificate: Certificate,
    /// Its file, which everybody may read.
    pub certificate_file: PathBuf,
    /// The file of its key, which only its owner may read.
    pub key_file: PathBuf,
}

/// An authority.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority: `ca.crt` and `ca.key` in a folder, which is made if need be.
    ///
    /// # Errors
    /// [`IssueError`] names the file.
    pub fn create(folder: &Path, name: &str, lifetime: Lifetime) -> Result<Issued, IssueError> {
        let files = Files::of(folder, AUTHORITY)?;
        let (key, mut params) = (KeyPair::generate()?, params(name, lifetime));
        // It signs holders' certificates, no other authority's.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        files.write(&params.self_signed(&key)?, &key)
    }

    /// Reads the authority of a folder.
    ///
    /// # Errors
    /// [`IssueError`] names the file.
    pub fn open(folder: &Path) -> Result<Self, IssueError> {
        let [certificate, key] = ["crt", "key"].map(|end| folder.join(AUTHORITY).with_extension(end));
        let read = |path: &Path| {
            let failed = |source| IssueError::Read { path: path.to_owned(), source };
            std::fs::read_to_string(path).map_err(failed)
        };
        let (text, key_text) = (read(&certificate)?, read(&key)?);
        let pair = KeyPair::from_pem(&key_text);
        let pair = pair.map_err(|source| IssueError::Authority { path: key, source })?;
        let issuer = Issuer::from_ca_cert_pem(&text, pair);
        let issuer = issuer.map_err(|source| IssueError::Authority { path: certificate, source })?;
        Ok(Self { folder: folder.to_owned(), issuer })
    }

    /// Makes `server.crt` and `server.key` for a server with these DNS names and addresses.
    ///
    /// # Errors
    /// [`IssueError`] names the file or the name.
    pub fn server(&self, names: &[String], lifetime: Lifetime) -> Result<Issued, IssueError> {
        let files = Files::of(&self.folder, SERVER)?;
        let is_name = |name: &String| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
            name.parse::<std::net::IpAddr>().is_ok()
                || (1..=253).contains(&name.len()) && name.chars().all(allowed)
        };
        if let Some(bad) = names.iter().find(|name| !is_name(name)) {
            return Err(IssueError::Server(bad.clone()));
        }
        let first = names.first().ok_or_else(|| IssueError::Server(String::new()))?;
        let mut params = params(first, lifetime);
        params.subject_alt_names = CertificateParams::new(names.to_vec())?.subject_alt_names;
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth, &files)
    }

    /// Makes `NAME.crt` and `NAME.key` for a client of this name.
    ///
    /// # Errors
    /// [`IssueError`] names the file or the name.
    pub fn client(&self, name: &str, lifetime: Lifetime) -> Result<Issued, IssueError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
        let fits = (1..=64).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with('.');
        if !fits || [AUTHORITY, SERVER].contains(&name) {
            return Err(IssueError::Client(name.to_owned()));
        }
        let files = Files::of(&self.folder, name)?;
        self.issue(params(name, lifetime), ExtendedKeyUsagePurpose::ClientAuth, &files)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        files: &Files,
    ) -> Result<Issued, IssueError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        files.write(&params.signed_by(&key, &self.issuer)?, &key)
    }
}

/// A certificate of this subject, valid from now on.
fn params(name: &str, lifetime: Lifetime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + Duration::from_secs(u64::from(lifetime.0) * 86_400)).into();
    params
}

/// The files of a certificate to be made.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    /// The files of this name, of which there are none yet.
    fn of(folder: &Path, name: &str) -> Result<Self, IssueError> {
        // Not `with_extension`, as a client's name may have dots.
        let [certificate, key] = ["crt", "key"].map(|end| folder.join(format!("{name}.{end}")));
        if let Some(there) = [&certificate, &key].into_iter().find(|path| path.symlink_metadata().is_ok()) {
            return Err(IssueError::Exists(there.clone()));
        }
        Ok(Self { certificate, key })
    }

    fn write(&self, certificate: &rcgen::Certificate, key: &KeyPair) -> Result<Issued, IssueError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| match source.kind() {
                io::ErrorKind::AlreadyExists => IssueError::Exists(path),
                _ => IssueError::Write { path, source },
            }
        };
        let folder = self.key.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        write(&self.key, 0o600, &key.serialize_pem()).map_err(failed(&self.key))?;
        if let Err(error) = write(&self.certificate, 0o644, &certificate.pem()) {
            // A key without its certificate is of no use.
            let _ = std::fs::remove_file(&self.key);
            return Err(failed(&self.certificate)(error));
        }
        let parsed = Certificate::of(certificate.der()).ok_or(rcgen::Error::CouldNotParseCertificate)?;
        Ok(Issued {
            certificate: parsed,
            certificate_file: self.certificate.clone(),
            key_file: self.key.clone(),
        })
    }
}

fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
