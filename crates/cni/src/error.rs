// SPDX-License-Identifier: Apache-2.0
//! Errors as the CNI specification has them: a code and a message, in JSON on standard output.

use netvm_api::{ApiError, ClientError, Diagnostic, Severity};
use serde_json::{Value, json};

/// The codes of the specification, and one of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    IncompatibleVersion = 1,
    UnsupportedField = 2,
    InvalidEnvironment = 4,
    Io = 5,
    Decode = 6,
    InvalidConfig = 7,
    TryAgainLater = 11,
    NotAvailable = 50,
    /// CHECK: the container's network is not as it was.
    NotAsExpected = 100,
}

/// Why a command failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CniError {
    pub code: u32,
    pub message: String,
    pub details: String,
}

impl CniError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as u32, message: message.into(), details: String::new() }
    }

    /// As the runtime reads it. `version`: of the network's configuration.
    pub fn to_json(&self, version: &str) -> Value {
        json!({ "cniVersion": version, "code": self.code, "msg": self.message, "details": self.details })
    }
}

/// What is wrong, without warnings about what runs already.
fn errors(error: &ApiError) -> impl Iterator<Item = &Diagnostic> {
    error.diagnostics.iter().filter(|one| one.severity == Severity::Error)
}

impl From<ClientError> for CniError {
    fn from(error: ClientError) -> Self {
        let details = match &error {
            ClientError::Refused { error, .. } => errors(error).map(|one| one.rendered.as_str()).collect(),
            _ => String::new(),
        };
        let code = match &error {
            ClientError::Refused { status: 422, .. } => Code::InvalidConfig as u32,
            ClientError::Refused { status: 409 | 503, .. } => Code::TryAgainLater as u32,
            ClientError::NotRunning { .. } => Code::NotAvailable as u32,
            _ => Code::TryAgainLater as u32,
        };
        let first = match &error {
            ClientError::Refused { error, .. } => errors(error).next(),
            _ => None,
        };
        let why = first.map_or_else(String::new, |first| {
            let help = first.help.as_ref().map_or_else(String::new, |help| format!(" ({help})"));
            format!(": {}{help}", first.message)
        });
        Self { code, message: format!("{error}{why}"), details }
    }
}
