// SPDX-License-Identifier: Apache-2.0
//! Errors as a host reports them.

use netvm_config::ConfigError;
use netvm_fleet::HostError;

use crate::daemon::ApplyError;

/// An error without a place.
pub(super) const fn said(message: String) -> HostError {
    HostError { message, file: None, line: None, column: None }
}

/// The error for the status: with its place if it has one.
pub(super) fn error_of(error: &ApplyError) -> HostError {
    match error {
        ApplyError::Config(error) => host_error(error),
        error => said(error.to_string()),
    }
}

/// The first error of a configuration, and how many there are.
pub(super) fn host_error(error: &ConfigError) -> HostError {
    let findings = error.findings();
    let Some(first) = findings.iter().find(|finding| !finding.is_warning()) else {
        return said(error.to_string());
    };
    let mut message = first.message().to_owned();
    if let Some(remedy) = first.remedy() {
        message = format!("{message} ({remedy})");
    }
    let errors = findings.iter().filter(|finding| !finding.is_warning()).count();
    if errors > 1 {
        message = format!("{message}, and {} more", errors - 1);
    }
    let (line, column) = first.position();
    let number = |n: usize| u32::try_from(n).ok();
    HostError { message, file: Some(first.file().to_owned()), line: number(line), column: number(column) }
}
