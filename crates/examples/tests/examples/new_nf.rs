// SPDX-License-Identifier: Apache-2.0
//! `netvm new-nf`: each project builds, its test passes, and it runs in `netvm replay`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{good, have, programs, root};

/// A project, and what `netvm new-nf` printed as its next steps.
struct Project {
    folder: TempDir,
    path: PathBuf,
    next: String,
}

/// Makes a project of the language; `None` if this machine lacks what it takes.
fn project(language: &str, needed: &[&str]) -> Option<Project> {
    if !have(&[&["netvm", "netvmd"], needed].concat()) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(programs().join("netvm"));
    command.args(["new-nf", "--lang", language, "short-only", "--into"]).arg(folder.path());
    let said = good(command.arg("--sources").arg(root()));
    let (_, next) = said.split_once("Next:\n").unwrap_or_else(|| panic!("{said}"));
    let (path, next) = (folder.path().join("short-only"), next.to_owned());
    Some(Project { folder, path, next })
}

impl Project {
    /// Runs the next steps as they were printed, from the folder in which the project was made, and with nothing
    /// installed.
    fn follow(&self, environment: &[(&str, &Path)]) {
        let mut shell = Command::new("bash");
        shell.args(["-euxc", &self.next]).current_dir(self.folder.path()).envs(environment.iter().copied());
        for variable in ["PKG_CONFIG_PATH", "NETLIB_LIBRARY", "PYTHONPATH", "RUSTFLAGS"] {
            shell.env_remove(variable);
        }
        let said = good(&mut shell);
        assert!(said.contains("2 packets in, 1 out, dropped: 1 verdict"), "{}{said}", self.next);
    }
}

#[test]
fn rust() {
    let Some(project) = project("rust", &["cargo"]) else { return };
    // The versions of this workspace, which are downloaded already.
    fs::copy(root().join("Cargo.lock"), project.path.join("Cargo.lock")).unwrap();
    let target = project.path.join("target");
    project.follow(&[("CARGO_NET_OFFLINE", Path::new("true")), ("CARGO_TARGET_DIR", &target)]);
}

#[test]
fn c() {
    let Some(project) = project("c", &["cc", "make", "pkg-config"]) else { return };
    project.follow(&[]);
}

#[test]
fn python() {
    let Some(project) = project("python", &["python3"]) else { return };
    project.follow(&[("PYTHONDONTWRITEBYTECODE", Path::new("1"))]);
}

#[test]
fn the_python_module() {
    if !have(&["python3"]) {
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-B", "-m", "unittest", "discover", "--start-directory", "tests"]);
    command.current_dir(root().join("bindings/python")).env("PYTHONPATH", ".");
    let said = good(command.env("NETLIB_LIBRARY", programs().join("deps/libnetlib_c.so")));
    assert!(said.contains("OK") && !said.contains("Ran 0"), "{said}");
}

#[test]
fn go() {
    let Some(project) = project("go", &["go", "cc", "pkg-config"]) else { return };
    // Go's build cache does not see what pkg-config says, and would link what another test installed.
    let flags = format!("-L{}", project.path.join("netlib/lib").display());
    project.follow(&[("CGO_LDFLAGS", Path::new(&flags))]);

    // The package's own tests, with what these steps have installed.
    let library = project.path.join("netlib/lib");
    let mut command = Command::new("go");
    command.args(["test", "-count=1", "."]).current_dir(root().join("bindings/go"));
    command.env("PKG_CONFIG_PATH", library.join("pkgconfig")).env("LD_LIBRARY_PATH", &library);
    let said = good(command.env("CGO_LDFLAGS", flags));
    assert!(said.starts_with("ok"), "{said}");
}

#[test]
fn wrong_names_and_folders_are_refused() {
    if !have(&["netvm"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("taken")).unwrap();
    let call = |arguments: &[&str]| {
        let mut command = Command::new(programs().join("netvm"));
        let output = command.arg("new-nf").args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, expected) in [
        (&["--lang", "c", "../x"][..], "`../x` is not a name for an NF: use 1 to 32 of a-z, 0-9 and `-`"),
        (&["--lang", "c", "Short"], "`Short` is not a name for an NF"),
        (&["--lang", "rust", "match"], "`match` is a keyword of a compiler"),
        (&["--lang", "c", "taken"], "taken exists: choose another name, or another folder with --into"),
        (&["--lang", "c", "x", "--into", "nowhere"], "cannot create nowhere/x: No such file or directory"),
        (
            &["--lang", "go", "x", "--sources", "."],
            "no netvm sources in .: a project in Go builds netlib from them",
        ),
        (&["--lang", "perl", "x"], "invalid value 'perl' for '--lang <LANG>'"),
        (&["x"], "--lang <LANG>"),
    ] {
        let said = call(arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["taken"]);
}
