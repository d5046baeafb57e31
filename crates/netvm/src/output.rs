// SPDX-License-Identifier: Apache-2.0
//! Standard output and error: tables or JSON; colours on terminals only.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Row, Table, Width,
};
use netvm_api::{Diagnostic, Done};
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

    /// Prints text, whatever names and texts of others it has.
    pub fn text(&self, text: &str) -> Result<(), CliError> {
        self.raw(shown(text, self.colour).as_bytes())
    }

    /// Prints bytes.
    pub fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Prints a value as JSON.
    pub fn value<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        self.raw((escaped(&serde_json::to_string_pretty(value)?) + "\n").as_bytes())
    }

    /// Prints the result of a command.
    pub fn done(&self, done: &Done) -> Result<(), CliError> {
        if self.json { self.value(done) } else { self.text(&format!("{}\n", done.message)) }
    }

    /// Prints warnings about a configuration on standard error.
    pub fn warnings(&self, warnings: &[netvm_config::Finding]) {
        for warning in warnings {
            eprintln!("{}", shown(&warning.render(self.error_colour), self.error_colour));
        }
    }

    /// Prints what netvmd says of this machine, on standard error.
    pub fn of_machine<'a>(&self, diagnostics: impl IntoIterator<Item = &'a Diagnostic>) {
        for diagnostic in diagnostics.into_iter().filter(|_| !self.json) {
            eprintln!("{}", diagnostic.rendered);
        }
    }

    /// Prints an error on standard error.
    pub fn error(&self, error: &CliError) {
        if self.json {
            let text =
                serde_json::to_string_pretty(&error.to_api()).unwrap_or_else(|error| error.to_string());
            eprintln!("{}", escaped(&text));
            return;
        }
        let text = match error {
            CliError::Config(error) => error.render(self.error_colour),
            error => {
                let diagnostics = error.to_api().diagnostics;
                let rendered = diagnostics.into_iter().map(|diagnostic| diagnostic.rendered + "\n");
                rendered.collect::<String>() + &format!("netvm: {error}\n")
            }
        };
        eprint!("{}", shown(&text, self.error_colour));
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
                column.set_padding((0, GAP as u16));
                if name.starts_with('>') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table
    }

    /// A word, coloured if standard output takes colours.
    pub fn paint(&self, word: &str, colour: StateColour) -> String {
        let code = match colour {
            StateColour::Good => 32,
            StateColour::Warning => 33,
            StateColour::Bad => 31,
        };
        if self.colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// A table cell, coloured if standard output takes colours.
    pub fn cell(&self, text: impl ToString, colour: StateColour) -> Cell {
        let cell = Cell::new(text);
        let colour = match colour {
            StateColour::Good => Color::Green,
            StateColour::Warning => Color::Yellow,
            StateColour::Bad => Color::Red,
        };
        if self.colour { cell.fg(colour) } else { cell }
    }
}

fn shown(text: &str, has_colour: bool) -> Cow<'_, str> {
    if has_colour { netvm_text::styled(text) } else { netvm_text::lines(text) }
}

/// JSON in which characters that cannot be seen are escaped. Outside of texts it has none.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if netvm_text::is_visible(c) || c == '\n' {
            out.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
        }
    }
    out
}

/// The colour class of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateColour {
    /// Green: as intended.
    Good,
    /// Yellow: degraded or in transition.
    Warning,
    /// Red: failed.
    Bad,
}

/// A table's lines without trailing blanks. On a terminal, text wraps between words only; numbers do not wrap. A table
/// that is still too wide becomes a block of `NAME value` pairs for each row.
pub fn lines(mut table: Table) -> String {
    let width = match table.content_arrangement() {
        ContentArrangement::Disabled => None,
        _ => table.width().map(usize::from),
    };
    let least = least_widths(&table);
    if width.is_some_and(|width| least.iter().map(|least| least + GAP).sum::<usize>() > width + GAP) {
        return blocks(&table, width.unwrap_or_default());
    }
    for (column, least) in table.column_iter_mut().zip(least) {
        // Widths include the gap.
        let least = Width::Fixed(u16::try_from(least + GAP).unwrap_or(u16::MAX));
        column.set_constraint(ColumnConstraint::LowerBoundary(least));
    }
    trimmed(table.lines())
}

/// Blanks between columns.
const GAP: usize = 2;

/// The least width of each column: its longest word, or its longest number with unit.
fn least_widths(table: &Table) -> Vec<usize> {
    let header = table.header().into_iter();
    let width = |n: usize| {
        let cell = |row: &Row| row.cell_iter().nth(n).map_or_else(String::new, Cell::content);
        let of_cell = |text: String| {
            if text.starts_with(|first: char| first.is_ascii_digit()) {
                text.chars().count()
            } else {
                longest_word(&text)
            }
        };
        header.clone().chain(table.row_iter()).map(|row| of_cell(cell(row))).max().unwrap_or_default()
    };
    (0..table.column_iter().count()).map(width).collect()
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or_default()
}

fn blocks(table: &Table, width: usize) -> String {
    let names: Vec<String> =
        table.header().map_or_else(Vec::new, |row| row.cell_iter().map(Cell::content).collect());
    let mut text = String::new();
    for row in table.row_iter() {
        let mut used = 0;
        for (name, cell) in names.iter().zip(row.cell_iter()).filter(|(_, cell)| !cell.content().is_empty()) {
            let pair = format!("{name} {}", cell.content());
            let length = pair.chars().count();
            if used > 0 && used + GAP + length > width {
                text.push_str("\n  ");
                used = GAP;
            } else if used > 0 {
                text.push_str("  ");
                used += GAP;
            }
            text.push_str(&pair);
            used += length;
        }
        text.push('\n');
    }
    text
}

fn trimmed(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: u16) -> Table {
        let output = Output { json: false, terminal: true, colour: false, error_colour: false };
        let mut table = output.table(&["PORT", "WHAT IT DOES", ">RX BYTES"]);
        table.add_row(["uplink-of-the-rack", "receives what the switch sends", "1.5 GiB"]);
        table.set_width(width);
        table
    }

    #[test]
    fn json_shows_no_invisible_characters_and_means_the_same() {
        let name = "a\u{202e}\u{1b}\u{9b}\u{e0041}é\"";
        let json = escaped(&serde_json::to_string_pretty(&[name]).unwrap());
        assert!(json.chars().all(|c| netvm_text::is_visible(c) || c == '\n'), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [name]);
    }

    #[test]
    fn words_and_numbers_stay_whole() {
        assert_eq!(
            lines(table(44)),
            "PORT                WHAT IT DOES  RX BYTES\n\
             uplink-of-the-rack  receives       1.5 GiB\n                    what the\n                    switch sends\n"
        );
    }

    #[test]
    fn a_table_that_is_too_wide_becomes_blocks() {
        assert_eq!(
            lines(table(36)),
            "PORT uplink-of-the-rack\n  WHAT IT DOES receives what the switch sends\n  RX BYTES 1.5 GiB\n"
        );
    }
}
