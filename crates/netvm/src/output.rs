//! Standard output and error: tables or JSON; colours on terminals only.

use std::io::{self, IsTerminal, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};
use netvm_api::Done;
use serde::Serialize;

use crate::error::CliError;

/// The output of this run.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Print JSON.
    pub json: bool,
    /// Standard output is a terminal.
    pub terminal: bool,
    /// Standard output takes colours.
    pub colour: bool,
    /// Standard error takes colours.
    error_colour: bool,
}

impl Output {
    /// Colours depend on the terminal and `NO_COLOR`.
    pub fn new(json: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let terminal = io::stdout().is_terminal();
        Self {
            json,
            terminal,
            colour: terminal && wanted,
            error_colour: io::stderr().is_terminal() && wanted,
        }
    }

    /// Prints text.
    pub fn text(&self, text: &str) -> Result<(), CliError> {
        self.raw(text.as_bytes())
    }

    /// Prints bytes.
    pub fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Prints a value as JSON.
    pub fn value<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        self.text(&(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Prints the result of a command.
    pub fn done(&self, done: &Done) -> Result<(), CliError> {
        if self.json { self.value(done) } else { self.text(&format!("{}\n", done.message)) }
    }

    /// Prints warnings about a configuration on standard error.
    pub fn warnings(&self, warnings: &[netvm_config::Finding]) {
        for warning in warnings {
            eprintln!("{}", warning.render(self.error_colour));
        }
    }

    /// Prints an error on standard error.
    pub fn error(&self, error: &CliError) {
        if self.json {
            let text =
                serde_json::to_string_pretty(&error.to_api()).unwrap_or_else(|error| error.to_string());
            eprintln!("{text}");
            return;
        }
        if let CliError::Config(error) = error {
            eprint!("{}", error.render(self.error_colour));
            return;
        }
        for diagnostic in &error.to_api().diagnostics {
            eprintln!("{}", diagnostic.rendered);
        }
        eprintln!("netvm: {error}");
    }

    /// An empty table. `>` at the start of a column's name aligns it to the right.
    pub fn table(&self, columns: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(NOTHING);
        // Without a terminal, no line wraps, so grep sees whole rows.
        table.set_content_arrangement(if self.terminal {
            ContentArrangement::Dynamic
        } else {
            ContentArrangement::Disabled
        });
        if self.colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(columns.iter().map(|name| {
            let cell = Cell::new(name.trim_start_matches('>'));
            if self.colour { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        for (n, name) in columns.iter().enumerate() {
            if let Some(column) = table.column_mut(n) {
                column.set_padding((0, 2));
                if name.starts_with('>') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table
    }

    /// A word, coloured if standard output takes colours.
    pub fn paint(&self, word: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Doubtful => 33,
            Tone::Bad => 31,
        };
        if self.colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// A table cell, coloured if standard output takes colours.
    pub fn cell(&self, text: impl ToString, tone: Tone) -> Cell {
        let cell = Cell::new(text);
        let colour = match tone {
            Tone::Good => Color::Green,
            Tone::Doubtful => Color::Yellow,
            Tone::Bad => Color::Red,
        };
        if self.colour { cell.fg(colour) } else { cell }
    }
}

/// The colour class of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Green: as intended.
    Good,
    /// Yellow: degraded or in transition.
    Doubtful,
    /// Red: failed.
    Bad,
}

/// A table's lines without trailing blanks.
pub fn lines(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
