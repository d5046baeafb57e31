//! The commands that the program `netvmd` runs: `replay` and `policy eval`.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};

use crate::cli::ReplayArgs;
use crate::error::CliError;

/// Executes `netvmd replay`; returns only on failure.
pub fn replay(arguments: &ReplayArgs, json: bool) -> Result<(), CliError> {
    execute(|command| {
        command.arg("replay").arg("--chain").arg(arguments.chain.join(","));
        if json {
            command.arg("--json");
        }
        command.arg("--").arg(&arguments.input).arg(&arguments.output)
    })
}

/// Executes `netvmd policy-eval`; returns only on failure.
pub fn policy_eval(rules: &Path, headers: &Path) -> Result<(), CliError> {
    execute(|command| command.arg("policy-eval").arg("--classbench").arg(rules).arg("--trace").arg(headers))
}

fn execute(add_arguments: impl Fn(&mut Command) -> &mut Command) -> Result<(), CliError> {
    let program = find()?;
    let source = add_arguments(&mut Command::new(&program)).exec();
    Err(CliError::Start { program: program.display().to_string(), source })
}

/// Path of the program netvmd: beside this one, else in PATH.
pub fn find() -> Result<PathBuf, CliError> {
    let own = env::current_exe().unwrap_or_default();
    let beside = own.parent().map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let is_program = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let folders = beside.clone().into_iter().chain(env::split_paths(&path));
    folders
        .map(|folder| folder.join("netvmd"))
        .find(is_program)
        .ok_or_else(|| CliError::NoDaemon { beside: beside.unwrap_or_default().display().to_string() })
}
