// SPDX-License-Identifier: Apache-2.0
//! The commands that the program `netvmd` runs: `replay`, `policy eval`, and the look-ups of `check`.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use netvm_api::Diagnostic;
use rustix::fs::{Access, access};

use crate::cli::ReplayArgs;
use crate::error::CliError;

/// Executes `netvmd replay`; returns only on failure.
pub fn replay(arguments: &ReplayArgs, json: bool) -> Result<(), CliError> {
    execute(|command| {
        command.arg("replay").arg("--chain").arg(&arguments.chain);
        command.arg("--cut-frames").arg(&arguments.cut_frames);
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

/// The diagnostics of `netvmd check` for a file and this machine.
pub fn check(file: &Path) -> Result<Vec<Diagnostic>, CliError> {
    let program = find().map_err(|error| CliError::NoLookUp(Box::new(error)))?;
    let name = program.display().to_string();
    let start = |source| CliError::Start { program: name.clone(), source };
    let output = Command::new(&program).arg("check").arg("--").arg(file).output().map_err(start)?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(CliError::LookUp { program: name, error });
    }
    Ok(serde_json::from_slice(&output.stdout)?)
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
