// SPDX-License-Identifier: Apache-2.0
//! `netvm new-nf`: creates the project of an NF, which builds, has a test, and runs.
//!
//! What it prints as the next steps works as it stands: from a checkout, whose libnetlib is not installed, the steps
//! put it into the project first.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cli::{Language, NewNfArgs};
use crate::error::{CliError, NewNfError};
use crate::output::Output;

/// Longest name of a role; the error says so.
const MAX_ROLE_CHARS: usize = 32;

/// Names that compilers refuse for a program: keywords of Rust and Go, and libraries that the project uses.
const RESERVED: [&str; 26] = [
    "as", "async", "await", "break", "const", "continue", "crate", "else", "enum", "extern", "fn", "for",
    "if", "impl", "in", "loop", "main", "match", "mod", "netlib", "netvm", "nf-test", "self", "test", "type",
    "use",
];

/// A file of a template: its path in the project, and its text.
type Template = (&'static str, &'static str);

macro_rules! template {
    ($folder:literal: $($file:literal),+) => {
        &[$(($file, include_str!(concat!("../templates/", $folder, "/", $file, ".in")))),+]
    };
}

const README: &str = include_str!("../templates/README.md.in");

struct Project {
    files: &'static [Template],
    /// The commands that build and test it.
    steps: &'static str,
    /// The program that they build.
    program: &'static str,
    needs_sources: bool,
    /// What tells the steps where libnetlib is, if it is not installed; `None`: they do not use it.
    library: Option<&'static str>,
}

/// Where libnetlib of a checkout goes: into the project.
const PKG_CONFIG: &str = "$ export PKG_CONFIG_PATH=$PWD/netlib/lib/pkgconfig\n";
const PYTHON: &str =
    "$ export NETLIB_LIBRARY=$PWD/netlib/lib/libnetlib.so PYTHONPATH=@SOURCES@/bindings/python\n";
/// NFs see no variables of `netvm replay`: the command has them.
const PYTHON_CHAIN: &str =
    "\"/usr/bin/env NETLIB_LIBRARY=$NETLIB_LIBRARY PYTHONPATH=$PYTHONPATH $PWD/nf.py\"";
/// Lengths of the packets in `in.pcap`: the NF passes the first and drops the second.
const PACKETS: [u32; 2] = [100, 1200];

fn project(language: Language) -> Project {
    match language {
        Language::Rust => Project {
            files: template!("rust": "Cargo.toml", "src/main.rs"),
            steps: "$ cargo test\n$ cargo build",
            program: "target/debug/@NAME@",
            needs_sources: true,
            library: None,
        },
        Language::C => Project {
            files: template!("c": "Makefile", "nf.c", "test.c"),
            steps: "$ make test\n$ make",
            program: "@NAME@",
            needs_sources: false,
            library: Some(PKG_CONFIG),
        },
        Language::Python => Project {
            files: template!("python": "nf.py", "test_nf.py"),
            steps: "$ python3 -m unittest",
            program: "nf.py",
            needs_sources: false,
            library: Some(PYTHON),
        },
        Language::Go => Project {
            files: template!("go": "go.mod", "main.go", "main_test.go"),
            steps: "$ go test\n$ go build",
            program: "@NAME@",
            needs_sources: true,
            library: Some(PKG_CONFIG),
        },
    }
}

/// Creates the project in a folder with the NF's name.
pub fn new_nf(output: &Output, arguments: &NewNfArgs) -> Result<(), CliError> {
    let (made, steps) = make(arguments)?;
    let folder = made.display();
    let steps = steps.replace("$ ", "  ");
    output.raw(format!("created {folder}. Next:\n  cd {folder}\n{steps}\n").as_bytes())
}

/// The commands that build, test and try the project, each after `$ `.
fn steps(project: &Project, language: Language, sources: Option<&Path>) -> String {
    let mut steps = String::new();
    let mut chain = "./@PROGRAM@";
    if let (Some(library), Some(from)) = (project.library, sources.and_then(library_of)) {
        steps = format!("$ @SOURCES@/tools/package/install-netlib.sh $PWD/netlib{from}\n{library}");
        if language == Language::Python {
            chain = PYTHON_CHAIN;
        }
    }
    let replay = format!("$ {} replay in.pcap out.pcap --chain {chain}", own_name());
    steps + project.steps + "\n" + &replay
}

/// How a shell finds this program: by its name, or where it is if it was called by a path.
fn own_name() -> String {
    let called_by_path = std::env::args().next().is_some_and(|name| name.contains('/'));
    let path = std::env::current_exe().ok().filter(|_| called_by_path);
    path.map_or_else(|| "netvm".to_owned(), |path| path.display().to_string())
}

/// The options with which `install-netlib.sh` takes the library of these sources: what was built beside this program,
/// or nothing, so that it builds one. `None` if this program is installed, and the library with it.
fn library_of(sources: &Path) -> Option<String> {
    let own = std::env::current_exe().ok()?;
    let build = own.parent()?;
    let is_built = build.join("deps/libnetlib_c.so").is_file() && build.join("netlib.h").is_file();
    let is_of_checkout =
        own.starts_with(sources) && sources.join("tools/package/install-netlib.sh").is_file();
    match (is_built, is_of_checkout) {
        (true, _) => Some(format!(" --from {}", build.display())),
        (false, true) => Some(String::new()),
        (false, false) => None,
    }
}

/// A capture to try the NF with: Ethernet frames of zeros.
fn capture() -> Vec<u8> {
    // The header of a pcap file: magic, version 2.4, longest packet, Ethernet.
    let mut bytes = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    for length in PACKETS {
        bytes.extend([0, 0, length, length].map(u32::to_le_bytes).concat());
        bytes.resize(bytes.len() + length as usize, 0);
    }
    bytes
}

/// The folder, and the next steps in it.
fn make(arguments: &NewNfArgs) -> Result<(PathBuf, String), NewNfError> {
    let name = arguments.name.as_str();
    check_name(name)?;
    let project = project(arguments.lang);
    let sources = sources(arguments.sources.as_deref());
    if project.needs_sources && sources.is_none() {
        return Err(NewNfError::NoSources {
            sources: arguments.sources.clone(),
            language: arguments.lang.to_string(),
        });
    }
    let folder = arguments.into.join(name);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| NewNfError::Io { path, source }
    };
    match fs::create_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(NewNfError::Exists(folder)),
        made => made.map_err(failed(&folder))?,
    }
    let absolute = folder.canonicalize().map_err(failed(&folder))?;
    let steps = steps(&project, arguments.lang, sources.as_deref());
    let fill = |text: &str| {
        text.replace("@STEPS@", &steps)
            .replace("@PROGRAM@", project.program)
            .replace("@PROGRAM_PATH@", project.program)
            .replace("@NAME@", name)
            .replace("@FOLDER@", &absolute.display().to_string())
            .replace("@SOURCES@", &sources.as_deref().unwrap_or(Path::new("..")).display().to_string())
    };
    for (file, text) in project.files.iter().chain(&[("README.md", README)]) {
        let path = folder.join(file);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(&folder))?;
            fs::write(&path, fill(text))?;
            let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
            fs::set_permissions(&path, Permissions::from_mode(mode))
        };
        write().map_err(failed(&path))?;
    }
    let path = folder.join("in.pcap");
    fs::write(&path, capture()).map_err(failed(&path))?;
    let steps = fill("@STEPS@");
    Ok((folder, steps))
}

fn check_name(name: &str) -> Result<(), NewNfError> {
    let is_right = (1..=MAX_ROLE_CHARS).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !is_right {
        return Err(NewNfError::Name(name.to_owned()));
    }
    if RESERVED.contains(&name) {
        return Err(NewNfError::Reserved(name.to_owned()));
    }
    Ok(())
}

/// The folder of netvm's sources: the given one, the checkout in which this program was built, or the
/// installed one.
fn sources(given: Option<&Path>) -> Option<PathBuf> {
    let has_netlib = |folder: &PathBuf| folder.join("crates/netlib/Cargo.toml").is_file();
    if let Some(given) = given {
        return given.canonicalize().ok().filter(has_netlib);
    }
    let own = std::env::current_exe().ok()?;
    let installed = own.parent()?.join("../share/netvm/src");
    own.ancestors()
        .map(Path::to_owned)
        .find(has_netlib)
        .or_else(|| installed.canonicalize().ok().filter(has_netlib))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "short-only", "x2", &"n".repeat(32)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "2x", "Short", "a_b", "a/b", "..", "ä", &"n".repeat(33)] {
            assert!(matches!(check_name(bad), Err(NewNfError::Name(_))), "{bad}");
        }
        assert!(matches!(check_name("match"), Err(NewNfError::Reserved(_))));
    }
}
