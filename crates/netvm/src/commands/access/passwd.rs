// SPDX-License-Identifier: Apache-2.0
//! `netvm passwd`: passwords of users of the web page.

use std::io::{self, IsTerminal, Read, Write};

use netvm_passwords::MAX_PASSWORD;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::json;

use crate::cli::PasswdArgs;
use crate::error::CliError;
use crate::output::Output;

/// What Ctrl-C sends while the terminal shows nothing.
const INTERRUPT: char = '\u{3}';

/// Sets or removes a password, and says how to admit the user.
pub fn passwd(output: &Output, arguments: &PasswdArgs) -> Result<(), CliError> {
    let PasswdArgs { name, file, role, delete } = arguments;
    let shown = file.display();
    if *delete {
        netvm_passwords::remove(file, name)?;
        let done = netvm_api::Done { message: format!("`{name}` is removed from {shown}") };
        return output.done(&done);
    }
    netvm_passwords::set(file, name, &ask()?)?;
    if output.json {
        return output.value(&json!({ "name": name, "file": file }));
    }
    let role = role.word();
    output.text(&format!(
        "password of `{name}` set in {shown}\n\nTo admit this user, add to the configuration of netvmd:\n\n\
         [[api.remote.user]]\nname = \"{name}\"\nrole = \"{role}\"\n"
    ))
}

/// The password: typed twice at a terminal that does not show it, or the first line of standard input.
fn ask() -> Result<String, CliError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let mut text = String::new();
        stdin.lock().take(2 * MAX_PASSWORD as u64).read_to_string(&mut text)?;
        return Ok(text.lines().next().unwrap_or_default().to_owned());
    }
    let first = typed("Password: ")?;
    if first != typed("Again: ")? {
        return Err(CliError::Retyped);
    }
    Ok(first)
}

/// A line from the terminal, which does not show it.
fn typed(prompt: &str) -> Result<String, CliError> {
    let mut stderr = io::stderr();
    stderr.write_all(prompt.as_bytes())?;
    stderr.flush()?;
    let mut line = String::new();
    {
        let _hidden = Hidden::new()?;
        io::stdin().read_line(&mut line)?;
    }
    stderr.write_all(b"\n")?;
    if line.contains(INTERRUPT) || line.is_empty() {
        return Err(CliError::Declined);
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// While it is there, the terminal shows nothing. It sends no signals either, after one of which it would stay so.
struct Hidden(Termios);

impl Hidden {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Now, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
