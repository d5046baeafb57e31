//! `replay`: the program netvmd does it.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::cli::ReplayArgs;
use crate::error::CliError;

/// Becomes `netvmd replay`; comes back only when that cannot be.
pub fn replay(arguments: &ReplayArgs, json: bool) -> Result<(), CliError> {
    let program = find_daemon()?;
    let mut command = Command::new(&program);
    command.arg("replay").arg("--chain").arg(arguments.chain.join(","));
    if json {
        command.arg("--json");
    }
    let source = command.arg("--").arg(&arguments.input).arg(&arguments.output).exec();
    Err(CliError::Start { program: program.display().to_string(), source })
}

/// The program netvmd: beside this one, else in PATH.
pub fn find_daemon() -> Result<PathBuf, CliError> {
    let own = env::current_exe().unwrap_or_default();
    let folder = own.parent().map(PathBuf::from);
    let beside = folder.clone();
    let path = env::var_os("PATH").unwrap_or_default();
    let found = folder
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join("netvmd"))
        .find(|program| is_program(program));
    found.ok_or_else(|| CliError::NoDaemon { beside: beside.unwrap_or_default().display().to_string() })
}

fn is_program(path: &std::path::Path) -> bool {
    use rustix::fs::{Access, access};
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}
