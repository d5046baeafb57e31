// SPDX-License-Identifier: Apache-2.0
//! Passwords of users of the web page: a file with a line for each user, `NAME:HASH`. The hash is Argon2id's (RFC 9106)
//! as a string in the PHC format, which has its salt and its cost. Empty lines and lines that begin with `#` count for
//! nothing.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};

/// Largest file in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Permissions of others, who must not read hashes.
const OTHERS: u32 = 0o007;
/// Shortest password in characters: there is no second factor.
pub const MIN_PASSWORD: usize = 12;
/// Longest password in bytes.
pub const MAX_PASSWORD: usize = 1024;
/// Longest name in bytes.
const MAX_NAME: usize = 64;
/// What a check costs: the least that OWASP's "Password Storage Cheat Sheet" allows, 19 MiB and two passes.
const COST: (u32, u32, u32) = (19 << 10, 2, 1);

/// The file cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum PasswordsError {
    /// It cannot be read.
    #[error("cannot read {}: {source} (`netvm passwd` makes it)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It is too long.
    #[error("{} is longer than {MAX_FILE} bytes: name a file that `netvm passwd` has made", .0.display())]
    TooLong(PathBuf),
    /// Everybody may read it.
    #[error("every user may read the hashes of passwords in {path}: `chmod 600 {path}`", path = .0.display())]
    Open(PathBuf),
    /// A line has no name and hash.
    #[error("{}:{line}: expected NAME:HASH with a hash of Argon2, as `netvm passwd` writes them", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A name is twice in it.
    #[error("{}:{line}: `{name}` is there twice: remove one of the lines", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// The second line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
    /// A name cannot be a user's.
    #[error("`{0}` is no name for a user: use 1 to {MAX_NAME} of the characters A-Z a-z 0-9 _ - . @")]
    Name(String),
    /// A password is too short or too long.
    #[error("a password has {MIN_PASSWORD} characters or more, and at most {MAX_PASSWORD} bytes")]
    Password,
    /// The file has no such user.
    #[error("{} has no user `{name}`", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The password cannot be hashed.
    #[error("cannot hash the password: {0}")]
    Hash(argon2::password_hash::Error),
}

/// The users of a file, and the hashes of their passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passwords(BTreeMap<String, String>);

impl Passwords {
    /// Reads a file that not everybody may read.
    ///
    /// # Errors
    /// [`PasswordsError`] names the file, the line and the remedy.
    pub fn read(path: &Path) -> Result<Self, PasswordsError> {
        let (text, metadata) = read(path)?;
        if metadata.permissions().mode() & OTHERS != 0 {
            return Err(PasswordsError::Open(path.to_owned()));
        }
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, PasswordsError> {
        let mut users = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| is_entry(text)) {
            let entry = text.split_once(':').map(|(name, hash)| (name, hash.trim()));
            let fits = |(name, hash): &(&str, &str)| is_name(name) && PasswordHash::new(hash).is_ok();
            let Some((name, hash)) = entry.filter(fits) else {
                return Err(PasswordsError::Line { path: path.to_owned(), line });
            };
            if users.insert(name.to_owned(), hash.to_owned()).is_some() {
                return Err(PasswordsError::Twice { path: path.to_owned(), line, name: name.to_owned() });
            }
        }
        Ok(Self(users))
    }

    /// The hash of a user's password; `None` if the file has no such user. Another one shows that the password has
    /// changed.
    #[must_use]
    pub fn hash_of(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether this is the user's password. It takes as long for users that are not there, so that nobody learns who
    /// is, and some ten milliseconds of a processor: call it where nothing waits for it.
    #[must_use]
    pub fn is_right(&self, name: &str, password: &str) -> bool {
        if password.len() > MAX_PASSWORD {
            return false;
        }
        let known = self.hash_of(name);
        let Some(known) = known else {
            // It costs the same, whatever it yields.
            let _ = argon2().hash_password(password.as_bytes());
            return false;
        };
        argon2().verify_password(password.as_bytes(), known).is_ok()
    }
}

/// Sets the password of a user in a file, which is made if need be.
///
/// # Errors
/// [`PasswordsError`] names the file or what is wrong with the name or the password.
pub fn set(path: &Path, name: &str, password: &str) -> Result<(), PasswordsError> {
    if !is_name(name) {
        return Err(PasswordsError::Name(name.to_owned()));
    }
    if password.chars().count() < MIN_PASSWORD || password.len() > MAX_PASSWORD {
        return Err(PasswordsError::Password);
    }
    let hash = argon2().hash_password(password.as_bytes()).map_err(PasswordsError::Hash)?;
    let hash = hash.to_string();
    change(path, name, Some(&hash))
}

/// Removes a user from a file.
///
/// # Errors
/// [`PasswordsError`]; [`PasswordsError::Unknown`] if there is no such user.
pub fn remove(path: &Path, name: &str) -> Result<(), PasswordsError> {
    change(path, name, None)
}

/// Replaces or removes a user's line, and keeps all others. The file is replaced as a whole.
fn change(path: &Path, name: &str, hash: Option<&str>) -> Result<(), PasswordsError> {
    let (text, metadata) = match read(path) {
        Ok((text, metadata)) => (text, Some(metadata)),
        Err(PasswordsError::Read { source, .. })
            if source.kind() == io::ErrorKind::NotFound && hash.is_some() =>
        {
            (String::new(), None)
        }
        Err(error) => return Err(error),
    };
    let is_there = Passwords::parse(path, &text)?.hash_of(name).is_some();
    if !is_there && hash.is_none() {
        return Err(PasswordsError::Unknown { path: path.to_owned(), name: name.to_owned() });
    }
    let new = hash.map(|hash| format!("{name}:{hash}"));
    let is_own = |line: &str| is_entry(line) && line.split_once(':').is_some_and(|(other, _)| other == name);
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines() {
        if is_own(line) { lines.extend(new.as_deref()) } else { lines.push(line) }
    }
    if !is_there {
        lines.extend(new.as_deref());
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    replace(path, &text, metadata.as_ref())
        .map_err(|source| PasswordsError::Write { path: path.to_owned(), source })
}

/// Writes a file beside, with the rights of the old one, and renames it.
fn replace(path: &Path, text: &str, old: Option<&Metadata>) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    // One that was interrupted may have left it.
    let _ = std::fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    if let Some(old) = old {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o777 & !OTHERS))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(fresh, path)
}

fn read(path: &Path) -> Result<(String, Metadata), PasswordsError> {
    let failed = |source| PasswordsError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(PasswordsError::TooLong(path.to_owned()));
    }
    Ok((text, metadata))
}

fn is_entry(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with('#')
}

/// Whether a user can have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}

fn argon2() -> Argon2<'static> {
    let (memory, passes, threads) = COST;
    let params = Params::new(memory, passes, threads, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "correct horse battery";

    #[test]
    fn a_password_is_set_changed_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwords");
        set(&path, "alice", PASSWORD).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let first = Passwords::read(&path).unwrap();
        assert!(first.is_right("alice", PASSWORD));
        for (name, password) in [("alice", "wrong"), ("alice", ""), ("bob", PASSWORD), ("", PASSWORD)] {
            assert!(!first.is_right(name, password), "{name} {password}");
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("alice:$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
        assert!(!text.contains(PASSWORD));
        // Others, comments and the mode stay.
        std::fs::write(&path, format!("# of the switch\n\n{text}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        set(&path, "bob", "another password").unwrap();
        set(&path, "alice", "a better password").unwrap();
        let second = Passwords::read(&path).unwrap();
        assert!(second.is_right("alice", "a better password") && !second.is_right("alice", PASSWORD));
        assert!(second.is_right("bob", "another password"));
        assert_ne!(first.hash_of("alice"), second.hash_of("alice"));
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
        let text = std::fs::read_to_string(&path).unwrap();
        let starts: Vec<&str> = text.lines().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(starts, ["# of the switch", "", "alice", "bob"]);
        remove(&path, "alice").unwrap();
        assert_eq!(Passwords::read(&path).unwrap().hash_of("alice"), None);
        assert!(matches!(remove(&path, "alice"), Err(PasswordsError::Unknown { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn equal_passwords_have_different_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwords");
        ["alice", "bob"].iter().for_each(|name| set(&path, name, PASSWORD).unwrap());
        let users = Passwords::read(&path).unwrap();
        assert_ne!(users.hash_of("alice"), users.hash_of("bob"));
    }

    #[test]
    fn bad_files_names_and_passwords_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwords");
        let refusal = |result: Result<(), PasswordsError>| result.unwrap_err().to_string();
        assert!(refusal(remove(&path, "alice")).contains("`netvm passwd` makes it"));
        for name in ["", "a:b", "a b", "ä", &"a".repeat(65)] {
            assert!(refusal(set(&path, name, PASSWORD)).contains("is no name for a user"), "{name}");
        }
        for password in ["", "elevenchars", &"x".repeat(MAX_PASSWORD + 1)] {
            assert!(refusal(set(&path, "alice", password)).contains("12 characters or more"));
        }
        assert!(!path.exists());
        set(&path, "alice", PASSWORD).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        for (text, words) in [
            (format!("{good}bob\n"), ":2: expected NAME:HASH"),
            (format!("{good}bob:plain text\n"), ":2: expected NAME:HASH"),
            (format!("{good}\n{good}"), ":3: `alice` is there twice"),
            ("x".repeat(MAX_FILE as usize + 1), "is longer than"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Passwords::read(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        std::fs::write(&path, good).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = Passwords::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
