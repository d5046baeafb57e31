// SPDX-License-Identifier: Apache-2.0
//! The parts of the view as tables, whose less important columns are hidden on a narrow terminal.

use netvm_api::{ChainState, NfState};
use ratatui::layout::{Alignment, Constraint};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row, Table};

use super::view::{ChainRow, HopRow, View};
use crate::format::{count, labels, rate};

/// Columns of a bar.
const BAR: usize = 6;
/// Columns for the longest name of a port.
const MAX_NAME: u16 = 32;

/// A column: its head, its width, and the minimum width of the terminal to show it.
struct Column {
    head: &'static str,
    width: Constraint,
    from: u16,
}

const fn column(head: &'static str, width: u16, from: u16) -> Column {
    Column { head, width: Constraint::Length(width), from }
}

const fn rest(head: &'static str, least: u16) -> Column {
    Column { head, width: Constraint::Min(least), from: 0 }
}

/// A part of the view.
pub(super) struct Part {
    pub(super) title: &'static str,
    columns: &'static [Column],
    /// Cells of each row, for all columns.
    pub(super) rows: Vec<Vec<Cell<'static>>>,
}

impl Part {
    /// The table for a terminal of this width, from the `first` row on.
    pub(super) fn table(self, width: u16, first: usize) -> Table<'static> {
        let shown: Vec<bool> = self.columns.iter().map(|column| column.from <= width).collect();
        let is_shown = |n: &usize| shown.get(*n).copied().unwrap_or_default();
        let heads = self.columns.iter().filter(|column| column.from <= width);
        let head = heads.clone().map(|column| match column.width {
            Constraint::Length(_) => Cell::from(Text::from(column.head).alignment(Alignment::Right)),
            _ => Cell::from(column.head),
        });
        let rows = self.rows.into_iter().skip(first).map(|cells| {
            Row::new(cells.into_iter().enumerate().filter(|(n, _)| is_shown(n)).map(|(_, cell)| cell))
        });
        let widths: Vec<Constraint> = heads.map(|column| column.width).collect();
        let style = Style::new().add_modifier(Modifier::DIM);
        Table::new(rows.collect::<Vec<_>>(), widths).header(Row::new(head.collect::<Vec<_>>()).style(style))
    }
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Text::from(text).alignment(Alignment::Right))
}

/// A rate that should be 0.
fn loss(per_second: f64) -> Cell<'static> {
    let style = if per_second >= 1.0 { Style::new().fg(Color::Red) } else { Style::new() };
    right(rate(per_second)).style(style)
}

/// A share as a colour.
fn heat(percent: f64) -> Color {
    match percent {
        ..50.0 => Color::Green,
        ..80.0 => Color::Yellow,
        _ => Color::Red,
    }
}

/// A share as a bar and a number.
pub(super) fn bar(percent: f64) -> Vec<Span<'static>> {
    let full = ((percent / 100.0 * BAR as f64).round() as usize).min(BAR);
    vec![
        Span::styled("█".repeat(full), heat(percent)),
        Span::styled("░".repeat(BAR - full), Style::new().add_modifier(Modifier::DIM)),
        Span::raw(format!("{percent:>4.0} %")),
    ]
}

fn bar_cell(percent: f64) -> Cell<'static> {
    Cell::from(Line::from(bar(percent)))
}

pub(super) fn ports(view: &View) -> Part {
    let columns = const {
        &[
            rest("PORT", 8),
            column("LINK", 5, 60),
            column("RX/S", 9, 0),
            column("RX BIT/S", 9, 76),
            column("TX/S", 9, 0),
            column("TX BIT/S", 9, 76),
            column("DROPPED/S", 10, 0),
        ]
    };
    let with_labels = const {
        &[
            Column { head: "PORT", width: Constraint::Max(MAX_NAME), from: 0 },
            column("LINK", 5, 60),
            column("RX/S", 9, 0),
            column("RX BIT/S", 9, 76),
            column("TX/S", 9, 0),
            column("TX BIT/S", 9, 76),
            column("DROPPED/S", 10, 0),
            Column { head: "LABELS", width: Constraint::Min(12), from: 110 },
        ]
    };
    let has_labels = view.ports.iter().any(|port| !port.labels.is_empty());
    let row = |port: &super::view::PortRow| {
        let (word, colour) = if port.link { ("up", Color::Green) } else { ("down", Color::Red) };
        vec![
            Cell::from(port.name.clone()),
            right(word.to_owned()).style(Style::new().fg(colour)),
            right(rate(port.rx_packets)),
            right(rate(port.rx_bits)),
            right(rate(port.tx_packets)),
            right(rate(port.tx_bits)),
            loss(port.dropped),
            Cell::from(labels(&port.labels)),
        ]
    };
    let columns: &[Column] = if has_labels { with_labels } else { columns };
    Part { title: "ports", columns, rows: view.ports.iter().map(row).collect() }
}

pub(super) fn chains(view: &View) -> Part {
    let columns = const {
        &[
            Column { head: "CHAIN", width: Constraint::Max(16), from: 0 },
            rest("HOPS: HOW FULL THEIR RINGS ARE", 20),
            column("ENTERED/S", 10, 50),
            column("LEFT/S", 9, 70),
            column("DROPPED/S", 10, 40),
        ]
    };
    let row = |chain: &ChainRow| {
        let colour = match chain.state {
            ChainState::Up => Color::Green,
            ChainState::Bypassed => Color::Yellow,
            ChainState::Down => Color::Red,
        };
        let mut hops: Vec<Span<'static>> = Vec::new();
        for hop in &chain.hops {
            hops.extend([hop_span(hop), Span::raw(" → ")]);
        }
        hops.push(Span::raw(chain.output.clone()));
        vec![
            Cell::from(chain.name.clone()).style(Style::new().fg(colour)),
            Cell::from(Line::from(hops)),
            right(rate(chain.entered)),
            right(rate(chain.left)),
            loss(chain.dropped),
        ]
    };
    Part { title: "chains", columns, rows: view.chains.iter().map(row).collect() }
}

fn hop_span(hop: &HopRow) -> Span<'static> {
    if hop.is_bottleneck {
        let style = Style::new().fg(Color::Black).bg(heat(hop.ring_percent.max(hop.load_percent)));
        return Span::styled(format!("▶{} {:.0} %◀", hop.role, hop.ring_percent), style);
    }
    Span::raw(format!("{} {:.0} %", hop.role, hop.ring_percent))
}

pub(super) fn nfs(view: &View) -> Part {
    let columns = const {
        &[
            rest("NF", 10),
            column("STATE", 8, 90),
            column("RECEIVED/S", 10, 0),
            column("RING", 13, 0),
            column("LOAD", 13, 60),
            column("CYCLES/PACKET", 13, 76),
            column("BUFFERS", 8, 100),
            column("DROPPED/S", 10, 84),
        ]
    };
    let row = |nf: &super::view::NfRow| {
        let style = if nf.is_bottleneck { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
        let mark = if nf.is_bottleneck { "▶ " } else { "  " };
        let (word, colour) = match nf.state {
            NfState::Running => ("running", Color::Green),
            NfState::Standby => ("standby", Color::Green),
            NfState::Starting => ("starting", Color::Yellow),
            NfState::External => ("external", Color::Yellow),
            NfState::Stopped => ("stopped", Color::Yellow),
            NfState::Hung => ("hung", Color::Red),
            NfState::Starved => ("starved", Color::Red),
            NfState::Draining => ("draining", Color::Yellow),
            NfState::Backoff => ("backoff", Color::Red),
        };
        vec![
            Cell::from(format!("{mark}{} #{}", nf.role, nf.instance)).style(style),
            right(word.to_owned()).style(Style::new().fg(colour)),
            right(rate(nf.received)),
            bar_cell(nf.ring_percent),
            bar_cell(nf.load_percent),
            right(format!("{:.0}", nf.cycles_per_packet)),
            right(count(nf.buffers.into())),
            right(rate(nf.dropped)),
        ]
    };
    Part { title: "NFs", columns, rows: view.nfs.iter().map(row).collect() }
}

pub(super) fn drops(view: &View) -> Part {
    let columns = const {
        &[
            Column { head: "AT", width: Constraint::Length(6), from: 60 },
            rest("NAME", 8),
            Column { head: "REASON", width: Constraint::Max(20), from: 0 },
            column("DROPPED/S", 10, 0),
            column("PACKETS", 16, 70),
        ]
    };
    let row = |drop: &super::view::DropRow| {
        vec![
            right(drop.at.to_owned()),
            Cell::from(drop.name.clone()),
            Cell::from(drop.reason.clone()),
            loss(drop.dropped),
            right(count(drop.total)),
        ]
    };
    Part { title: "drops", columns, rows: view.drops.iter().map(row).collect() }
}
