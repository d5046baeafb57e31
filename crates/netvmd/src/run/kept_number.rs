//! The key by which NAT chooses addresses and ports. It is kept in the state folder, so that mappings are the same
//! after a restart. Keep it secret: who has it can predict them.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The name of its file: 16 hexadecimal digits.
const FILE: &str = "mapping-key";
const BYTES: usize = 8;

/// Reads the key, or makes one if there is none yet, or none that can be read as one.
///
/// # Errors
/// The folder, or the file, cannot be read or written.
pub(super) fn mapping_key(state_dir: &Path) -> io::Result<u64> {
    let path = state_dir.join(FILE);
    let known = match std::fs::read_to_string(&path) {
        Ok(text) => u64::from_str_radix(text.trim_end(), 16).ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(key) = known {
        return Ok(key);
    }
    let mut random = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let key = u64::from_ne_bytes(random);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    writeln!(file, "{key:016x}")?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_stays_until_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let key = mapping_key(folder.path()).unwrap();
        assert_eq!(mapping_key(folder.path()).unwrap(), key);
        let path = folder.path().join(FILE);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "not a key").unwrap();
        let other = mapping_key(folder.path()).unwrap();
        assert!(other != key && mapping_key(folder.path()).unwrap() == other);
        assert!(mapping_key(&folder.path().join("missing")).is_err());
    }
}
