// SPDX-License-Identifier: Apache-2.0
//! Random numbers that netvmd keeps in its state folder, so that they are the same after a restart.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The key by which NAT chooses addresses and ports. Keep it secret: who has it can predict them.
pub(crate) const MAPPING_KEY: &str = "mapping-key";
/// What distinguishes this host in LACP.
pub(crate) const LACP_SYSTEM: &str = "lacp-system";
const BYTES: usize = 8;

/// Reads a number from the file of this name, 16 hexadecimal digits; makes one if there is none yet, or none that can
/// be read as one.
///
/// # Errors
/// The folder, or the file, cannot be read or written.
pub(crate) fn kept_number(state_dir: &Path, file: &str) -> io::Result<u64> {
    let path = state_dir.join(file);
    let known = match std::fs::read_to_string(&path) {
        Ok(text) => u64::from_str_radix(text.trim_end(), 16).ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(number) = known {
        return Ok(number);
    }
    let mut random = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let number = u64::from_ne_bytes(random);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    writeln!(file, "{number:016x}")?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_stays_until_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let number = kept_number(folder.path(), MAPPING_KEY).unwrap();
        assert_eq!(kept_number(folder.path(), MAPPING_KEY).unwrap(), number);
        let path = folder.path().join(MAPPING_KEY);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "not a key").unwrap();
        let other = kept_number(folder.path(), MAPPING_KEY).unwrap();
        assert!(other != number && kept_number(folder.path(), MAPPING_KEY).unwrap() == other);
        assert_ne!(kept_number(folder.path(), LACP_SYSTEM).unwrap(), other);
        assert!(kept_number(&folder.path().join("missing"), MAPPING_KEY).is_err());
    }
}
