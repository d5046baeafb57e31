//! Log lines for people, on standard error.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::filter::LevelFilter;

/// Starts logging. Under systemd the journal has the time; elsewhere each line begins with it, in UTC.
pub fn start(level: LevelFilter) {
    let lines = tracing_subscriber::fmt()
        .compact()
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        .with_max_level(level)
        .with_writer(stderr);
    // An error says that there is a logger already, which then stays.
    let _ = if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().try_init()
    } else {
        lines.try_init()
    };
}
