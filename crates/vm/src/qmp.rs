// SPDX-License-Identifier: Apache-2.0
//! QMP, QEMU's control channel: JSON lines over a Unix socket (QEMU's docs/interop/qmp-spec).
//!
//! The peer is untrusted, as a guest may have broken out of its machine. So the length of a line and the number of
//! unread events are bounded, and a line that does not parse ends the connection.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Longest line. QEMU's longest answers are below a tenth of this.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Limit for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Unread events to keep; further events push out the oldest.
const EVENTS: usize = 64;

/// Why a QMP request failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum QmpError {
    /// I/O error: QEMU has ended, or never listened.
    #[error("QEMU's control socket: {0}")]
    Socket(#[from] io::Error),
    /// QEMU closed the connection.
    #[error("QEMU has closed its control socket")]
    Closed,
    /// The peer does not speak QMP.
    #[error("QEMU's control socket does not speak QMP: {0}")]
    Protocol(&'static str),
    /// QEMU refused the command.
    #[error("QEMU refuses `{command}`: {reason}")]
    Refused { command: &'static str, reason: String },
    /// QEMU does not answer: it is stopped, or its main loop is stuck.
    #[error("QEMU has not answered `{command}` within {} s: its process may be stopped", ANSWER.as_secs())]
    Overdue { command: &'static str },
}

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Major version, such as 7.
    pub major: u32,
    /// Minor version, such as 2.
    pub minor: u32,
    /// Patch level, such as 22.
    pub micro: u32,
}

impl Version {
    /// Parses the output of `qemu-system-… --version`: `QEMU emulator version 7.2.22 (Debian …)`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.lines().next()?.split_once(" version ")?;
        let word = rest.split_whitespace().next()?;
        let mut numbers = word.split('.').map(|part| part.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { major: next()?, minor: next()?, micro: next().unwrap_or_default() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// The oldest QEMU that netvm is tested with.
pub const OLDEST: Version = Version { major: 7, minor: 2, micro: 0 };

/// An asynchronous event, such as `RESET`.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Name in capitals.
    pub name: String,
    /// Data of the event, or null.
    pub data: Value,
}

/// A QMP connection.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    /// Bytes of an incomplete line.
    unread: Vec<u8>,
    events: VecDeque<Event>,
    version: Version,
    requests: u64,
}

impl Qmp {
    /// Connects, and negotiates QMP's capabilities. QEMU serves one connection at a time and does not answer a second
    /// one.
    ///
    /// # Errors
    /// [`QmpError`] from the kernel or from QEMU.
    pub async fn connect(path: &Path) -> Result<Self, QmpError> {
        Self::negotiate(UnixStream::connect(path).await?).await
    }

    /// Negotiates QMP's capabilities on an accepted connection.
    ///
    /// # Errors
    /// Like [`Qmp::connect`].
    pub async fn negotiate(stream: UnixStream) -> Result<Self, QmpError> {
        let version = Version { major: 0, minor: 0, micro: 0 };
        let mut qmp = Self { stream, unread: Vec::new(), events: VecDeque::new(), version, requests: 0 };
        let greeting = qmp.message().await?;
        let number = |part: &str| -> Option<u32> {
            greeting.pointer(&format!("/QMP/version/qemu/{part}"))?.as_u64()?.try_into().ok()
        };
        let version =
            || Some(Version { major: number("major")?, minor: number("minor")?, micro: number("micro")? });
        qmp.version = version().ok_or(QmpError::Protocol("its greeting has no version"))?;
        qmp.execute("qmp_capabilities", Value::Null).await?;
        Ok(qmp)
    }

    /// Version of this QEMU.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Executes a command and returns its result. `arguments` is an object, or null for none.
    ///
    /// # Errors
    /// [`QmpError::Refused`] if QEMU refuses the command. After any other error the connection is unusable.
    pub async fn execute(&mut self, command: &'static str, arguments: Value) -> Result<Value, QmpError> {
        self.requests += 1;
        let id = self.requests;
        let mut request = json!({ "execute": command, "id": id });
        if let (Value::Object(request), false) = (&mut request, arguments.is_null()) {
            request.insert("arguments".to_owned(), arguments);
        }
        let answer = async {
            self.stream.write_all(format!("{request}\n").as_bytes()).await?;
            self.answer(command, id).await
        };
        timeout(ANSWER, answer).await.unwrap_or(Err(QmpError::Overdue { command }))
    }

    async fn answer(&mut self, command: &'static str, id: u64) -> Result<Value, QmpError> {
        loop {
            let mut message = self.message().await?;
            if let Some(event) = event(&mut message) {
                self.queue_event(event);
            } else if message.get("id").and_then(Value::as_u64) != Some(id) {
                // The answer to an earlier request whose caller was cancelled.
            } else if let Some(error) = message.get("error") {
                let reason = error.get("desc").and_then(Value::as_str).unwrap_or("without a reason");
                return Err(QmpError::Refused { command, reason: reason.chars().take(500).collect() });
            } else {
                return Ok(message.get_mut("return").map(Value::take).unwrap_or_default());
            }
        }
    }

    /// Waits for the next event. Cancel safe: no event is lost.
    ///
    /// # Errors
    /// [`QmpError`] if the connection has ended.
    pub async fn event(&mut self) -> Result<Event, QmpError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let mut message = self.message().await?;
            if let Some(event) = event(&mut message) {
                return Ok(event);
            }
        }
    }

    /// Whether the guest's processors run.
    ///
    /// # Errors
    /// [`QmpError`].
    pub async fn is_running(&mut self) -> Result<bool, QmpError> {
        let status = self.execute("query-status", Value::Null).await?;
        status
            .get("running")
            .and_then(Value::as_bool)
            .ok_or(QmpError::Protocol("query-status has no `running`"))
    }

    /// Thread ids of the virtual processors, in order.
    ///
    /// # Errors
    /// [`QmpError`].
    pub async fn vcpu_threads(&mut self) -> Result<Vec<u32>, QmpError> {
        let list = self.execute("query-cpus-fast", Value::Null).await?;
        let thread = |cpu: &Value| cpu.get("thread-id")?.as_u64()?.try_into().ok();
        list.as_array()
            .and_then(|list| list.iter().map(thread).collect())
            .ok_or(QmpError::Protocol("query-cpus-fast has no `thread-id`"))
    }

    /// Ends QEMU at once, like a power cut.
    ///
    /// # Errors
    /// [`QmpError`].
    pub async fn quit(&mut self) -> Result<(), QmpError> {
        match self.execute("quit", Value::Null).await {
            Ok(_) | Err(QmpError::Closed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn queue_event(&mut self, event: Event) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    async fn message(&mut self) -> Result<Value, QmpError> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let message = serde_json::from_slice(&self.unread[..end]);
                self.unread.drain(..=end);
                return message.map_err(|_| QmpError::Protocol("it sends a line that is not JSON"));
            }
            if self.unread.len() > MAX_LINE_BYTES {
                return Err(QmpError::Protocol("it sends a line that is too long"));
            }
            // Cancel safe: either reads into our own buffer or not at all.
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(QmpError::Closed);
            }
        }
    }
}

fn event(message: &mut Value) -> Option<Event> {
    let name: String = message.get("event")?.as_str()?.chars().take(64).collect();
    Some(Event { name, data: message.get_mut("data").map(Value::take).unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": []}}"#;

    /// A QEMU that writes these lines whatever it receives.
    async fn against(lines: &[&str]) -> Result<Qmp, QmpError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let text: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        tokio::spawn(async move {
            // The client may have closed the connection already.
            let _ = theirs.write_all(text.as_bytes()).await;
            let _ = theirs.read_to_end(&mut Vec::new()).await;
        });
        Qmp::negotiate(ours).await
    }

    fn run<T>(body: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body)
    }

    #[test]
    fn versions_are_parsed_from_qemus_output() {
        let text = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(Version::parse(text), Some(Version { major: 7, minor: 2, micro: 22 }));
        assert_eq!(Version::parse("QEMU emulator version 11.1").unwrap().to_string(), "11.1.0");
        assert_eq!(Version::parse("bash: no such thing"), None);
    }

    #[test]
    fn events_between_answers_are_kept_in_order() {
        run(async {
            let lines = [
                GREETING,
                r#"{"return": {}, "id": 1}"#,
                r#"{"event": "STOP", "timestamp": {}}"#,
                r#"{"return": {"running": false}, "id": 77}"#,
                r#"{"event": "RESET", "data": {"guest": true}}"#,
                r#"{"return": {"running": true}, "id": 2}"#,
                r#"{"event": "RESUME"}"#,
                r#"{"error": {"class": "GenericError", "desc": "no such thing"}, "id": 3}"#,
            ];
            let mut qmp = against(&lines).await.unwrap();
            assert_eq!(qmp.version().to_string(), "7.2.22");
            assert!(qmp.is_running().await.unwrap());
            let refused = qmp.execute("fly", json!({ "high": true })).await.unwrap_err();
            assert_eq!(refused.to_string(), "QEMU refuses `fly`: no such thing");
            for name in ["STOP", "RESET", "RESUME"] {
                assert_eq!(qmp.event().await.unwrap().name, name);
            }
        });
    }

    #[test]
    fn invalid_messages_end_the_connection() {
        run(async {
            for lines in [&["hello"][..], &["{}"], &[GREETING, "]"]] {
                assert!(matches!(against(lines).await, Err(QmpError::Protocol(_))), "{lines:?}");
            }
            let endless = "x".repeat(MAX_LINE_BYTES + 2);
            let error = against(&[&endless]).await.unwrap_err();
            assert!(matches!(error, QmpError::Protocol(_)), "{error}");
            let (ours, theirs) = UnixStream::pair().unwrap();
            drop(theirs);
            assert!(Qmp::negotiate(ours).await.is_err());
        });
    }

    #[test]
    fn a_silent_qemu_is_overdue() {
        run(async {
            let mut qmp = against(&[GREETING, r#"{"return": {}, "id": 1}"#]).await.unwrap();
            let error = qmp.is_running().await.unwrap_err();
            assert!(matches!(error, QmpError::Overdue { command: "query-status" }), "{error}");
        });
    }

    #[test]
    fn unread_events_are_bounded() {
        run(async {
            let mut lines = vec![GREETING.to_owned(), r#"{"return": {}, "id": 1}"#.to_owned()];
            lines.extend((0..1000).map(|n| format!(r#"{{"event": "E{n}"}}"#)));
            lines.push(r#"{"return": {"running": true}, "id": 2}"#.to_owned());
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let mut qmp = against(&lines).await.unwrap();
            assert!(qmp.is_running().await.unwrap());
            assert_eq!(qmp.events.len(), EVENTS);
            assert_eq!(qmp.event().await.unwrap().name, "E936");
        });
    }
}
