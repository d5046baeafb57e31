// SPDX-License-Identifier: Apache-2.0
//! `netvm top`: two readings of all counters become a [`View`], which is drawn on the terminal, printed once, or
//! printed as JSON.

mod draw;
mod rows;
mod view;

use std::time::Duration;

use netvm_api::{Client, Stats};
use ratatui::DefaultTerminal;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::time::{Instant, sleep};

use crate::cli::TopArgs;
use crate::error::CliError;
use crate::output::Output;
use draw::{PARTS, Screen};
use view::View;

/// How often keys are read.
const KEYS: Duration = Duration::from_millis(40);
/// Interval between attempts to reach a netvmd that starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Columns of a view that is printed.
const WIDTH: u16 = 120;

/// Shows the live view.
pub async fn top(client: &Client, output: &Output, arguments: TopArgs) -> Result<(), CliError> {
    let mut reader =
        StatsReader { client, hz: client.status().await?.clock_hz as f64, last: client.stats().await? };
    if output.json || arguments.once {
        loop {
            sleep(arguments.interval).await;
            let view = reader.read_or_wait().await?;
            match (output.json, arguments.once) {
                (true, true) => output.value(&view)?,
                (true, false) => output.text(&(serde_json::to_string(&view)? + "\n"))?,
                (false, _) => output.text(&printed(&view)?)?,
            }
            if arguments.once {
                return Ok(());
            }
        }
    }
    if !output.terminal {
        return Err(CliError::NoTerminal);
    }
    let mut terminal = TerminalGuard(ratatui::try_init()?);
    live(&mut terminal.0, &mut reader, arguments.interval).await
}

/// Two consecutive readings.
struct StatsReader<'a> {
    client: &'a Client,
    /// Frequency of the clock that counts cycles.
    hz: f64,
    last: Stats,
}

impl StatsReader<'_> {
    async fn read(&mut self) -> Result<View, CliError> {
        let now = self.client.stats().await?;
        let view = View::between(&self.last, &now, self.hz);
        self.last = now;
        Ok(view)
    }

    /// As [`StatsReader::read`], but `None` while no netvmd answers.
    async fn read_if_there(&mut self) -> Result<Option<View>, CliError> {
        match self.read().await {
            Err(CliError::Client(error)) if error.is_absence() => Ok(None),
            view => view.map(Some),
        }
    }

    /// As [`StatsReader::read`]; waits while no netvmd answers.
    async fn read_or_wait(&mut self) -> Result<View, CliError> {
        loop {
            match self.read_if_there().await? {
                Some(view) => return Ok(view),
                None => sleep(RETRY_INTERVAL).await,
            }
        }
    }
}

/// Restores the terminal however the view ends.
struct TerminalGuard(DefaultTerminal);

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOutcome {
    Nothing,
    Redraw,
    End,
}

async fn live(
    terminal: &mut DefaultTerminal,
    reader: &mut StatsReader<'_>,
    interval: Duration,
) -> Result<(), CliError> {
    let mut screen = Screen::default();
    let mut view = View::between(&reader.last, &reader.last, reader.hz);
    let mut next = Instant::now() + interval.min(Duration::from_millis(300));
    loop {
        terminal.draw(|frame| screen.draw(&view, frame))?;
        loop {
            sleep(KEYS).await;
            match keys(&mut screen)? {
                KeyOutcome::End => return Ok(()),
                KeyOutcome::Redraw => break,
                KeyOutcome::Nothing => {}
            }
            if Instant::now() >= next && !screen.is_paused {
                next = Instant::now() + interval;
                match reader.read_if_there().await? {
                    Some(now) => (view, screen.is_away) = (now, false),
                    None => screen.is_away = true,
                }
                break;
            }
        }
    }
}

/// Handles the keys that were pressed.
fn keys(screen: &mut Screen) -> Result<KeyOutcome, CliError> {
    let mut outcome = KeyOutcome::Nothing;
    while event::poll(Duration::ZERO)? {
        let event = event::read()?;
        let Event::Key(key) = event else {
            outcome = KeyOutcome::Redraw;
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        outcome = KeyOutcome::Redraw;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(KeyOutcome::End),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Ok(KeyOutcome::End);
            }
            KeyCode::Tab => screen.choose((screen.part + 1) % PARTS),
            KeyCode::BackTab => screen.choose((screen.part + PARTS - 1) % PARTS),
            KeyCode::Down | KeyCode::Char('j') => screen.scroll = screen.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => screen.scroll = screen.scroll.saturating_sub(1),
            KeyCode::Char('p') => screen.is_paused = !screen.is_paused,
            KeyCode::Char('?' | 'h') => screen.has_help = !screen.has_help,
            _ => {}
        }
    }
    Ok(outcome)
}

/// A view as text, with all its rows.
fn printed(view: &View) -> Result<String, CliError> {
    let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(WIDTH);
    let backend = TestBackend::new(width.clamp(20, 400), draw::height(view));
    let mut terminal = Terminal::new(backend).unwrap_or_else(|never| match never {});
    let _ = terminal.draw(|frame| Screen::default().draw(view, frame));
    let text = terminal.backend().to_string();
    let lines = text.lines().map(|line| line.trim_matches('"').trim_end());
    Ok(lines.map(|line| format!("{line}\n")).collect())
}
