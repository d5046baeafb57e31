//! `netvm new-nf`: each project builds, its test passes, and it runs in `netvm replay`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{good, have, programs, root};

/// Makes a project of the language; `None` if this machine lacks what it takes.
fn project(language: &str, needed: &[&str]) -> Option<(TempDir, PathBuf)> {
    if !have(&[&["netvm", "netvmd"], needed].concat()) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(programs().join("netvm"));
    command.args(["new-nf", "--lang", language, "short-only", "--into"]).arg(folder.path());
    let said = good(command.arg("--sources").arg(root()));
    assert!(said.contains("netvm replay"), "{said}");
    let project = folder.path().join("short-only");
    Some((folder, project))
}

/// Replays a packet of 100 bytes and one of 1200 bytes, which the project's NF drops.
fn replay(folder: &Path, chain: &str) {
    let mut capture = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    for length in [100_u32, 1200] {
        capture.extend([0, 0, length, length].map(u32::to_le_bytes).concat());
        capture.resize(capture.len() + length as usize, 0);
    }
    fs::write(folder.join("in.pcap"), capture).unwrap();
    let mut command = Command::new(programs().join("netvm"));
    command.current_dir(folder).args(["replay", "in.pcap", "out.pcap", "--chain", chain]);
    let said = good(&mut command);
    assert!(said.starts_with("2 packets in, 1 out, dropped: 1 verdict"), "{said}");
}

/// Installs libnetlib as it was built with these tests, below the folder.
fn installed_library(folder: &Path) -> PathBuf {
    let prefix = folder.join("prefix");
    let script = root().join("tools/package/install-netlib.sh");
    good(Command::new(script).arg(&prefix).arg("--from").arg(programs()));
    prefix.join("lib/pkgconfig")
}

#[test]
fn rust() {
    let Some((_folder, project)) = project("rust", &["cargo"]) else { return };
    // The versions of this workspace, which are downloaded already.
    fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    for step in ["test", "build"] {
        let mut command = Command::new("cargo");
        command
            .args([step, "--offline"])
            .current_dir(&project)
            .env("CARGO_TARGET_DIR", project.join("target"));
        let said = good(command.env_remove("RUSTFLAGS"));
        assert!(step == "build" || said.contains("1 passed"), "{said}");
    }
    replay(&project, "./target/debug/short-only");
}

#[test]
fn c() {
    let Some((folder, project)) = project("c", &["cc", "make", "pkg-config"]) else { return };
    let library = format!("PKG_CONFIG_PATH={}", installed_library(folder.path()).display());
    let said = good(Command::new("make").arg("test").arg(&library).current_dir(&project));
    assert!(said.ends_with("ok\n"), "{said}");
    good(Command::new("make").arg(&library).current_dir(&project));
    replay(&project, "./short-only");
}

#[test]
fn python() {
    let Some((_folder, project)) = project("python", &["python3"]) else { return };
    let (library, module) = (programs().join("deps/libnetlib_c.so"), root().join("bindings/python"));
    let environment = [("NETLIB_LIBRARY", library.as_path()), ("PYTHONPATH", module.as_path())];
    let mut command = Command::new("python3");
    command.args(["-B", "-m", "unittest"]).current_dir(&project).envs(environment);
    assert!(good(&mut command).contains("Ran 1 test"));
    // NFs do not see the environment of `netvm replay`.
    let set = environment.map(|(name, value)| format!("{name}={}", value.display())).join(" ");
    replay(&project, &format!("/usr/bin/env {set} {}", project.join("nf.py").display()));
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
    let Some((folder, project)) = project("go", &["go", "cc", "pkg-config"]) else { return };
    let library = installed_library(folder.path());
    for arguments in [&["test", "-v"][..], &["build"]] {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(&project).env("PKG_CONFIG_PATH", &library);
        // Go's build cache does not see what pkg-config says, and would link what another test installed.
        command.env("CGO_LDFLAGS", format!("-L{}", folder.path().join("prefix/lib").display()));
        let said = good(&mut command);
        assert!(arguments == ["build"] || said.contains("PASS"), "{said}");
    }
    replay(&project, "./short-only");
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
        (&["--lang", "c", "../x"][..], "`../x` is no name for an NF: use 1 to 32 of a-z, 0-9 and `-`"),
        (&["--lang", "c", "Short"], "`Short` is no name for an NF"),
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
