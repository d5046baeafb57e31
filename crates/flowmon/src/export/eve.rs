// SPDX-License-Identifier: Apache-2.0
//! Flows as JSON lines, named as in Suricata's `eve.json`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::interfaces::Interface;
use super::ipfix::Clock;
use crate::entry::{NameKind, Record, Verdict};
use crate::key::Endpoints;

/// Packets that were dropped for one reason at one place, for the eve file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops {
    /// Kind of the place: `port`, `chain` or `nf`.
    pub place: &'static str,
    /// Its name.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// Packets since the last line of this place and reason.
    pub packets: u64,
    /// When they were counted, in microseconds since 1970.
    pub unix_micros: u64,
}

/// Appends to a file; `-` is standard output.
pub(super) struct Eve {
    path: PathBuf,
    out: BufWriter<Box<dyn Write + Send>>,
    clock: Clock,
}

impl Eve {
    /// # Errors
    /// The kernel's, if the file cannot be opened.
    pub(super) fn open(path: &Path, clock: Clock) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), out: BufWriter::new(sink(path)?), clock })
    }

    /// Opens the file again under its name, after it was moved away.
    ///
    /// # Errors
    /// The kernel's; then the old file stays in use.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out = BufWriter::new(sink(&self.path)?);
        Ok(())
    }

    /// # Errors
    /// The kernel's, if the file cannot be written.
    pub(super) fn write(&mut self, record: &Record, names: RecordNames<'_>) -> io::Result<()> {
        let line = line(record, names, &self.clock);
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")
    }

    /// # Errors
    /// As [`Eve::write`].
    pub(super) fn write_drops(&mut self, drops: &Drops) -> io::Result<()> {
        let line = json!({
            "timestamp": time(drops.unix_micros),
            "event_type": "drop",
            "drop": {
                "place": drops.place, "name": drops.name, "reason": drops.reason, "packets": drops.packets,
            },
        });
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")
    }

    /// # Errors
    /// As [`Eve::write`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn sink(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file: File = OpenOptions::new().create(true).append(true).open(path)?;
    Ok(Box::new(file))
}

/// Names of what a record has as numbers.
#[derive(Clone, Copy)]
pub(super) struct RecordNames<'a> {
    /// The rule that decided.
    pub(super) rule: Option<&'a str>,
    /// The port by which it came in, if it has a name.
    pub(super) ingress: Option<&'a Interface>,
}

fn line(record: &Record, names: RecordNames<'_>, clock: &Clock) -> Value {
    let mut line = Map::new();
    let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
    put("timestamp", time(clock.micros(record.last)).into());
    put("event_type", "flow".into());
    put("in_iface", names.ingress.map_or_else(|| record.ingress.to_string(), |it| it.name.clone()).into());
    if let Some(labels) = names.ingress.map(|it| &it.labels).filter(|labels| !labels.is_empty()) {
        put("in_labels", json!(labels));
    }
    if record.key.vlan() != 0 {
        put("vlan", json!([record.key.vlan()]));
    }
    match record.endpoints() {
        Endpoints::Ip(tuple) => {
            put("src_ip", tuple.source.to_ip().to_string().into());
            put("src_port", tuple.source_port.into());
            put("dest_ip", tuple.destination.to_ip().to_string().into());
            put("dest_port", tuple.destination_port.into());
            put("proto", tuple.protocol.to_string().to_uppercase().into());
        }
        Endpoints::Ethernet { source, destination, ether_type } => {
            put("ether", json!({ "src_mac": source.to_string(), "dest_mac": destination.to_string() }));
            put("proto", ether_type.to_string().to_uppercase().into());
        }
    }
    let mut flow = json!({
        "pkts_toserver": record.there.packets,
        "pkts_toclient": record.back.packets,
        "bytes_toserver": record.there.bytes,
        "bytes_toclient": record.back.bytes,
        "start": time(clock.micros(record.first)),
        "end": time(clock.micros(record.last)),
        "age": (clock.micros(record.last) - clock.micros(record.first)) / 1_000_000,
        "reason": record.reason.text(),
    });
    if record.decided.verdict != Verdict::Unknown {
        flow["verdict"] = record.decided.verdict.text().into();
        flow["rule"] = names.rule.into();
    }
    put("flow", flow);
    if let Some(ends) = record.translated {
        let nat = json!({
            "src_ip": ends.source.to_ip(),
            "src_port": ends.source_port,
            "dest_ip": ends.destination.to_ip(),
            "dest_port": ends.destination_port,
        });
        put("nat", nat);
    }
    let [there, back] = record.tcp_flags;
    if there | back != 0 {
        let flags = |flags: u8| Value::from(format!("{flags:02x}"));
        put(
            "tcp",
            json!({ "tcp_flags": flags(there | back), "tcp_flags_ts": flags(there), "tcp_flags_tc": flags(back) }),
        );
    }
    match record.name {
        None => {}
        Some(name) if name.kind() == NameKind::Dns => {
            put("dns", json!({ "rrname": name.as_str() }));
        }
        Some(name) => {
            put("tls", json!({ "sni": name.as_str() }));
        }
    }
    Value::Object(line)
}

/// `2026-11-24T22:01:29.123456+0000`.
fn time(unix_micros: u64) -> String {
    let micros = i64::try_from(unix_micros).unwrap_or(i64::MAX);
    let time = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
    time.strftime("%Y-%m-%dT%H:%M:%S.%6f%z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (unix, text) in [
            (0, "1970-01-01T00:00:00.000000+0000"),
            (951_782_400_000_001, "2000-02-29T00:00:00.000001+0000"),
            (1_795_557_689_123_456, "2026-11-24T22:01:29.123456+0000"),
            (4_102_444_799_999_999, "2099-12-31T23:59:59.999999+0000"),
            (u64::MAX, "9999-12-30T22:00:00.999999+0000"),
        ] {
            assert_eq!(time(unix), text);
        }
    }
}
