//! The kernel's files, below a root that tests put elsewhere.

use std::fs;
use std::path::PathBuf;

/// Where `/proc` and `/sys` are.
pub struct Root(PathBuf);

impl Root {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// A file's text without the blanks around it; `None`: it is not there, or not for us.
    pub fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// A number in a file.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// The command that adds arguments to the kernel's command line, where Debian's or Ubuntu's GRUB has it.
    pub fn kernel_arguments(&self, arguments: &str) -> String {
        if self.path("etc/default/grub").exists() {
            format!(
                "sudo sed -i.bak 's/^GRUB_CMDLINE_LINUX=\"/&{arguments} /' /etc/default/grub && sudo update-grub  # then reboot"
            )
        } else {
            format!(
                "# add to the kernel's command line where the boot loader or hypervisor has it: {arguments}"
            )
        }
    }

    /// Names in a folder, sorted; none when it is not there.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last part of where a symbolic link points.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Files of a kernel that is not this one.
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
