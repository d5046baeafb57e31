// SPDX-License-Identifier: Apache-2.0
//! Draws a view into a frame: a head, the workers, and four parts of which one is large.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph};

use super::rows::{Part, bar, chains, drops, nfs, ports};
use super::view::View;
use crate::format::{count, duration, rate};

/// Parts: ports, chains, NFs, drops.
pub(super) const PARTS: usize = 4;
/// Minimum lines of a part: its title and head, and two rows.
const MIN_PART_LINES: u16 = 4;

const HELP: &str = "q, Esc   end
Tab      the next part is large
↑ ↓      scroll the large part
p        pause
?        this help

RING  how full the fullest receive ring of the NF is; from 25 % on,
      the NF is too slow, and ▶ marks it
LOAD  share of its time that the NF works on packets
netvm explain NAME says what a column or a drop reason means";

/// What the user has chosen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// The large part.
    pub(super) part: usize,
    /// Its first row.
    pub(super) scroll: usize,
    pub(super) is_paused: bool,
    /// No netvmd answers; the view is the last one.
    pub(super) is_away: bool,
    pub(super) has_help: bool,
}

/// Lines for all rows of a view.
pub(super) fn height(view: &View) -> u16 {
    let rows = view.ports.len() + view.chains.len() + view.nfs.len() + view.drops.len();
    u16::try_from(rows + 2 * PARTS + 2).unwrap_or(u16::MAX).max(PARTS as u16 * MIN_PART_LINES + 2)
}

impl Screen {
    /// Makes a part the large one.
    pub(super) fn choose(&mut self, part: usize) {
        (self.part, self.scroll) = (part, 0);
    }

    pub(super) fn draw(&mut self, view: &View, frame: &mut Frame<'_>) {
        let parts = [ports(view), chains(view), nfs(view), drops(view)];
        let area = frame.area();
        let wanted = parts.iter().map(|part| part.rows.len() as u16 + 2);
        let heights = heights(&wanted.collect::<Vec<_>>(), area.height.saturating_sub(2), self.part);
        let lines = [1, 1].into_iter().chain(heights).map(Constraint::Length);
        let areas = Layout::vertical(lines).split(area);
        frame.render_widget(self.head(view), areas[0]);
        frame.render_widget(workers(view), areas[1]);
        for (n, (part, area)) in parts.into_iter().zip(areas.iter().skip(2)).enumerate() {
            self.part(n, part, *area, frame);
        }
        if self.has_help {
            let size = Rect { width: area.width.min(68), height: area.height.min(12), ..area };
            frame.render_widget(Clear, size);
            frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title("netvm top")), size);
        }
    }

    fn head(&self, view: &View) -> Line<'static> {
        let sum = |of: fn(&super::view::PortRow) -> f64| view.ports.iter().map(of).sum::<f64>();
        let dropped = view.dropped;
        let style = if dropped >= 1.0 { Style::new().fg(Color::Red) } else { Style::new() };
        let mut spans = vec![
            Span::styled("netvm top", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!("  rx {}/s", rate(sum(|port| port.rx_packets)))),
            Span::raw(format!("  tx {}/s", rate(sum(|port| port.tx_packets)))),
            Span::styled(format!("  dropped {}/s", rate(dropped)), style),
            Span::raw(format!("  up {}", duration(view.uptime_s))),
        ];
        if self.is_away {
            spans.push(Span::styled("  netvmd does not answer; waiting for it", Style::new().fg(Color::Red)));
        }
        if self.is_paused {
            spans.push(Span::styled("  paused", Style::new().fg(Color::Yellow)));
        }
        Line::from(spans)
    }

    fn part(&mut self, n: usize, part: Part, area: Rect, frame: &mut Frame<'_>) {
        if area.height < 2 {
            return;
        }
        let (all, room) = (part.rows.len(), usize::from(area.height.saturating_sub(2)));
        let is_large = n == self.part;
        if is_large {
            self.scroll = self.scroll.min(all.saturating_sub(room.max(1)));
        }
        let first = if is_large { self.scroll } else { 0 };
        let hidden = all.saturating_sub(first + room);
        let more = if hidden > 0 { format!(", {hidden} more") } else { String::new() };
        let title = format!(" {}: {all}{more} ", part.title);
        let style =
            if is_large { Style::new().fg(Color::Cyan) } else { Style::new().add_modifier(Modifier::DIM) };
        let block = Block::new().borders(Borders::TOP).border_style(style).title(title);
        frame.render_widget(part.table(area.width, first).block(block), area);
    }
}

fn workers(view: &View) -> Line<'static> {
    let mut spans = Vec::new();
    for worker in &view.workers {
        spans.push(Span::raw(format!("worker {} core {} ", worker.id, worker.core)));
        spans.extend(bar(worker.busy_percent));
        spans.push(Span::raw("  "));
    }
    for group in &view.groups {
        let text =
            format!("{}: {} of {} buffers free  ", group.name, count(group.free), count(group.buffers));
        let is_short = group.free * 20 < group.buffers;
        spans.push(Span::styled(text, if is_short { Style::new().fg(Color::Red) } else { Style::new() }));
    }
    Line::from(spans)
}

/// The height of each part: what it needs, if all fit; else the minimum, with the rest for the `large` part
/// first.
fn heights(wanted: &[u16], room: u16, large: usize) -> Vec<u16> {
    let mut heights: Vec<u16> = wanted.iter().map(|wanted| (*wanted).min(MIN_PART_LINES)).collect();
    let mut left = room.saturating_sub(heights.iter().sum());
    let order = std::iter::once(large).chain((0..wanted.len()).filter(|n| *n != large));
    for n in order {
        let more = (wanted[n] - heights[n]).min(left);
        heights[n] += more;
        left -= more;
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_part_gets_what_is_left() {
        assert_eq!(heights(&[5, 3, 4, 2], 20, 0), [5, 3, 4, 2]);
        assert_eq!(heights(&[50, 30, 40, 20], 30, 2), [4, 4, 18, 4]);
        assert_eq!(heights(&[50, 3, 6, 20], 40, 2), [27, 3, 6, 4]);
    }
}
