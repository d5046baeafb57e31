// SPDX-License-Identifier: Apache-2.0
//! `netvm events`.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use netvm_api::{Client, Event, EventSeverity};
use tokio::time::sleep;

use crate::error::CliError;
use crate::output::{Output, StateColour};

/// Interval between attempts to reach a netvmd that starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

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
        sleep(RETRY_INTERVAL).await;
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
    let colour = match event.severity {
        EventSeverity::Info => StateColour::Good,
        EventSeverity::Warning => StateColour::Warning,
        EventSeverity::Error => StateColour::Bad,
    };
    let word = output.paint(&format!("{:<7}", event.severity.word()), colour);
    // Messages contain names that NFs choose.
    let message = netvm_text::line(&event.message);
    format!("{} {:>5}  {word}  {:<17} {message}", clock(event.at), event.number, event.kind.word())
}

/// A time of day in UTC, with the date unless it was today.
pub(super) fn clock(at: f64) -> String {
    // A number that is out of the range of times becomes the last of them.
    let at = Timestamp::from_second(at as i64).unwrap_or(Timestamp::MAX);
    let date = |time| TimeZone::UTC.to_datetime(time).date();
    let format = if date(at) == date(Timestamp::now()) { "%H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%SZ" };
    at.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(
            [0.0, 5_097_599.9, 1_709_251_199.0, 1_795_557_689.5].map(clock),
            ["1970-01-01 00:00:00Z", "1970-02-28 23:59:59Z", "2024-02-29 23:59:59Z", "2026-11-24 22:01:29Z"]
        );
        assert_eq!(clock(f64::MAX), "9999-12-30 22:00:00Z");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        assert_eq!(clock(now).len(), "22:01:29Z".len());
    }
}
