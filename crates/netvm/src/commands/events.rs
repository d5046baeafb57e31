//! `netvm events`.

use std::time::{Duration, SystemTime};

use netvm_api::{Client, Event, EventSeverity};
use tokio::time::sleep;

use crate::error::CliError;
use crate::output::{Output, Tone};

/// Interval between attempts to reach a netvmd that starts.
const AGAIN: Duration = Duration::from_millis(200);

/// Prints the events after a number and, with `follow`, new ones.
pub async fn events(client: &Client, output: &Output, follow: bool, after: u64) -> Result<(), CliError> {
    if !follow {
        let events = client.events().await?;
        return print(output, events.iter().filter(|event| event.number > after));
    }
    let (mut pid, mut last) = (client.status().await?.pid, after);
    loop {
        last = match follow_one(client, output, last).await {
            Err(CliError::Client(error)) if error.is_absence() => last,
            other => other?,
        };
        eprintln!("netvmd has ended the events; waiting until it sends more");
        let now = until_there(client).await?;
        // The numbers of another netvmd begin again.
        last = if now == pid { last } else { 0 };
        pid = now;
    }
}

/// Waits for a netvmd. Returns its process.
async fn until_there(client: &Client) -> Result<u32, CliError> {
    loop {
        sleep(AGAIN).await;
        match client.status().await {
            Err(error) if error.is_absence() => {}
            status => return Ok(status?.pid),
        }
    }
}

/// Prints the events of one netvmd until it ends. Returns the number of the last one.
async fn follow_one(client: &Client, output: &Output, after: u64) -> Result<u64, CliError> {
    let (mut stream, mut last) = (client.follow_events(after).await?, after);
    loop {
        match stream.next().await {
            Ok(Some(event)) => {
                print(output, [&event])?;
                last = event.number;
            }
            Ok(None) => return Ok(last),
            Err(error) if error.is_absence() => return Ok(last),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints a line for each event, as JSON or as text.
fn print<'a>(output: &Output, events: impl IntoIterator<Item = &'a Event>) -> Result<(), CliError> {
    let mut text = String::new();
    for event in events {
        let line = if output.json { serde_json::to_string(event)? } else { draw(event, output) };
        text.extend([&line, "\n"]);
    }
    output.text(&text)
}

fn draw(event: &Event, output: &Output) -> String {
    let tone = match event.severity {
        EventSeverity::Info => Tone::Good,
        EventSeverity::Warning => Tone::Doubtful,
        EventSeverity::Error => Tone::Bad,
    };
    let word = output.paint(&format!("{:<7}", event.severity.word()), tone);
    // Messages contain names that NFs choose.
    let message = netvm_text::line(&event.message);
    format!("{} {:>5}  {word}  {:<17} {message}", clock(event.at), event.number, event.kind.word())
}

/// A time of day in UTC, with the date unless it was today.
fn clock(at: f64) -> String {
    let seconds = at.max(0.0) as u64;
    let today =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() / 86_400;
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let time = format!("{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60);
    if day == today { time } else { format!("{} {time}", date(day)) }
}

/// The date of a day since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
fn date(day: u64) -> String {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * shifted_month + 2) / 5 + 1, (shifted_month + 2) % 12 + 1);
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(
            [0, 59, 19_782, 20_781].map(date),
            ["1970-01-01", "1970-03-01", "2024-02-29", "2026-11-24"]
        );
        assert!(clock(1.0).starts_with("1970-01-01 00:00:01Z"));
    }
}
