//! Standard output and error: tables for people, JSON for programs, colours on terminals only.

use std::io::{self, IsTerminal, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};
use netvm_api::Done;
use serde::Serialize;

use crate::error::CliError;

/// How this run prints.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON is wanted.
    pub json: bool,
    /// Standard output is a terminal.
    pub terminal: bool,
    /// Standard output takes colours.
    pub colour: bool,
    /// Standard error takes colours.
    error_colour: bool,
}

impl Output {
    /// Output as the terminal and `NO_COLOR` say.
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

    /// Prints a text as it is.
    pub fn text(&self, text: &str) -> Result<(), CliError> {
        self.raw(text.as_bytes())
    }

    /// Prints bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Prints a value as JSON.
    pub fn value<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        self.text(&(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Prints what was done.
    pub fn done(&self, done: &Done) -> Result<(), CliError> {
        if self.json { self.value(done) } else { self.text(&format!("{}\n", done.message)) }
    }

    /// Prints findings of a configuration to standard error.
    pub fn warnings(&self, warnings: &[netvm_config::Finding]) {
        for warning in warnings {
            eprintln!("{}", warning.render(self.error_colour));
        }
    }

    /// Prints an error to standard error.
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

    /// An empty table with these columns. Columns whose name begins with `>` are aligned to the right.
    pub fn table(&self, columns: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(NOTHING);
        // A line for each item where programs such as grep read it.
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

    /// A word in a colour, where there are colours.
    pub fn paint(&self, word: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Doubtful => 33,
            Tone::Bad => 31,
        };
        if self.colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// A cell in a colour, where there are colours.
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

/// What a state means for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Not quite, or not yet.
    Doubtful,
    /// Not as it should be.
    Bad,
}

/// A table as lines without blanks at their ends.
pub fn lines(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
