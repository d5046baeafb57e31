// SPDX-License-Identifier: Apache-2.0
//! Reads kernel files below a root folder, which tests replace.

use std::fs;
use std::path::PathBuf;

/// The folder that holds `proc` and `sys`.
pub struct Root(PathBuf);

impl Root {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// A file's text, trimmed; `None` if it does not exist or cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// A number in a file.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// A command that adds arguments to the kernel's command line: for GRUB of Debian and Ubuntu, else a hint.
    pub fn kernel_arguments(&self, arguments: &str) -> String {
        if self.path("etc/default/grub").exists() {
            format!(
                "sudo sed -i.bak 's/^GRUB_CMDLINE_LINUX=\"/&{arguments} /' /etc/default/grub && sudo update-grub  # then reboot"
            )
        } else {
            format!("# add to the kernel's command line in the boot loader or hypervisor: {arguments}")
        }
    }

    /// Names in a folder, sorted; empty if the folder does not exist.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The file name of a symbolic link's target.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A fake `proc` and `sys`.
    pub struct Tree(tempfile::TempDir);

    impl Tree {
        pub fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = folder.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(folder)
        }

        pub fn link(self, path: &str, target: &str) -> Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
            self
        }

        pub fn root(&self) -> Root {
            Root::new(self.0.path())
        }
    }
}
