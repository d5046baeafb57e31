//! `netvm new-nf`: creates the project of an NF, which builds, has a test, and runs.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cli::{Language, NewNfArgs};
use crate::error::{CliError, NewNfError};
use crate::output::Output;

/// Longest name of a role; the error says so.
const LONGEST: usize = 32;

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
}

fn project(language: Language) -> Project {
    match language {
        Language::Rust => Project {
            files: template!("rust": "Cargo.toml", "src/main.rs"),
            steps: "$ cargo test\n$ cargo build",
            program: "target/debug/@NAME@",
            needs_sources: true,
        },
        Language::C => Project {
            files: template!("c": "Makefile", "nf.c", "test.c"),
            steps: "$ make test\n$ make",
            program: "@NAME@",
            needs_sources: false,
        },
        Language::Python => Project {
            files: template!("python": "nf.py", "test_nf.py"),
            steps: "$ python3 -m unittest",
            program: "nf.py",
            needs_sources: false,
        },
        Language::Go => Project {
            files: template!("go": "go.mod", "main.go", "main_test.go"),
            steps: "$ go test\n$ go build",
            program: "@NAME@",
            needs_sources: true,
        },
    }
}

/// Creates the project in a folder with the NF's name.
pub fn new_nf(output: &Output, arguments: &NewNfArgs) -> Result<(), CliError> {
    let made = make(arguments)?;
    let project = project(arguments.lang);
    let folder = made.display();
    let steps = project.steps.replace("$ ", "  ");
    let program = project.program.replace("@NAME@", &arguments.name);
    output.raw(
        format!("created {folder}. Next:\n  cd {folder}\n{steps}\n  netvm replay in.pcap out.pcap --chain ./{program}\n")
            .as_bytes(),
    )
}

fn make(arguments: &NewNfArgs) -> Result<PathBuf, NewNfError> {
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
    let fill = |text: &str| {
        text.replace("@STEPS@", project.steps)
            .replace("@PROGRAM@", &format!("./{}", project.program))
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
    Ok(folder)
}

fn check_name(name: &str) -> Result<(), NewNfError> {
    let is_right = (1..=LONGEST).contains(&name.len())
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
