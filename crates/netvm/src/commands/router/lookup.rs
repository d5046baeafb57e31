// SPDX-License-Identifier: Apache-2.0
//! `netvm router lookup`: the longest matching prefix of each address, by the engine's tables, without netvmd.
//!
//! Input: a file of prefixes and a file of addresses, one per line, with both families mixed; empty lines and
//! lines that begin with `#` are ignored. Output: a line for each address, its prefix or `-`. Only a block of
//! addresses is in memory, so the list of addresses may have any length.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use netvm_router::{NextHopId, Tables, Update};
use netvm_wire::{IpNet, Ipv4Net, Ipv6Net};

use crate::cli::LookupArgs;
use crate::error::{CliError, LookupError};

/// Addresses to look up together.
const BLOCK: usize = 4096;
/// Name of standard input.
const STDIN: &str = "-";
/// The first bytes of gzip's files.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file, a line at a time.
struct Lines<'a> {
    path: &'a Path,
    reader: Box<dyn BufRead>,
    /// The bytes of the current line.
    bytes: Vec<u8>,
    number: usize,
}

impl<'a> Lines<'a> {
    fn open(path: &'a Path) -> Result<Self, LookupError> {
        let failed = |source| LookupError::Read { path: path.to_owned(), source };
        let mut reader: Box<dyn BufRead> = if path == Path::new(STDIN) {
            Box::new(BufReader::with_capacity(1 << 18, io::stdin()))
        } else {
            Box::new(BufReader::with_capacity(1 << 18, File::open(path).map_err(failed)?))
        };
        if reader.fill_buf().map_err(failed)?.starts_with(&GZIP) {
            return Err(LookupError::Compressed(path.to_owned()));
        }
        Ok(Self { path, reader, bytes: Vec::new(), number: 0 })
    }

    /// The next line that is not ignored, with its number.
    fn next(&mut self) -> Result<Option<(usize, &str)>, LookupError> {
        loop {
            self.bytes.clear();
            let failed = |source| LookupError::Read { path: self.path.to_owned(), source };
            if self.reader.read_until(b'\n', &mut self.bytes).map_err(failed)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let text = self.bytes.trim_ascii();
            if !text.is_empty() && text[0] != b'#' {
                break;
            }
        }
        let text = self.bytes.trim_ascii();
        // No prefix or address has other characters, so a line that is not UTF-8 fails.
        Ok(Some((self.number, str::from_utf8(text).unwrap_or("(not UTF-8)"))))
    }
}

/// Builds the tables. The id of a next hop is the length of its prefix plus one, as 0 stands for no route.
fn tables(path: &Path) -> Result<Tables, LookupError> {
    let mut lines = Lines::open(path)?;
    let mut update = Update::default();
    while let Some((line, text)) = lines.next()? {
        let net: IpNet = text.parse().map_err(|source| LookupError::Prefix {
            path: path.to_owned(),
            line,
            text: text.to_owned(),
            source,
        })?;
        update.routes.push((net, Some(NextHopId(u16::from(net.length()) + 1))));
    }
    let mut tables = Tables::new();
    tables.apply(&update);
    Ok(tables)
}

/// Addresses of a block, in the order of their lines.
#[derive(Default)]
struct Block {
    is_v4: Vec<bool>,
    v4: Vec<u32>,
    v6: Vec<[u8; 16]>,
    found: [Vec<NextHopId>; 2],
    text: String,
}

impl Block {
    fn clear(&mut self) {
        self.is_v4.clear();
        self.v4.clear();
        self.v6.clear();
        self.text.clear();
    }

    fn push(&mut self, address: IpAddr) {
        self.is_v4.push(address.is_ipv4());
        match address {
            IpAddr::V4(address) => self.v4.push(address.to_bits()),
            IpAddr::V6(address) => self.v6.push(address.octets()),
        }
    }

    /// A line for each address.
    fn look_up(&mut self, tables: &Tables) -> &str {
        let Self { is_v4, v4, v6, found: [found_v4, found_v6], text } = self;
        found_v4.resize(v4.len(), NextHopId::PUNT);
        found_v6.resize(v6.len(), NextHopId::PUNT);
        tables.lookup_v4(v4, found_v4);
        tables.lookup_v6(v6, found_v6);
        let mut v4 = v4.iter().zip(found_v4);
        let mut v6 = v6.iter().zip(found_v6);
        for is_v4 in is_v4 {
            let length = |id: NextHopId| id.0.checked_sub(1).map(|length| length as u8);
            let net = if *is_v4 {
                v4.next().and_then(|(address, id)| {
                    Some(IpNet::V4(Ipv4Net::containing(Ipv4Addr::from_bits(*address), length(*id)?).ok()?))
                })
            } else {
                v6.next().and_then(|(address, id)| {
                    Some(IpNet::V6(Ipv6Net::containing(Ipv6Addr::from(*address), length(*id)?).ok()?))
                })
            };
            // Writing to a string does not fail.
            let _ = match net {
                Some(net) => writeln!(text, "{net}"),
                None => writeln!(text, "-"),
            };
        }
        text
    }
}

/// Looks up all addresses and prints a line for each.
///
/// # Errors
/// [`CliError::Lookup`]; the addresses before a wrong one are printed.
pub fn lookup(arguments: &LookupArgs, json: bool) -> Result<(), CliError> {
    let (prefixes, path) = (&arguments.prefixes, &arguments.addresses);
    if [prefixes, path].iter().all(|path| *path == Path::new(STDIN)) {
        return Err(LookupError::StdinTwice.into());
    }
    let tables = tables(prefixes)?;
    let mut lines = Lines::open(path)?;
    let mut output = Printer { output: io::stdout().lock(), json, printed: 0 };
    let mut block = Block::default();
    let outcome = loop {
        let next = lines.next();
        match next {
            Ok(Some((line, text))) => match text.parse() {
                Ok(address) => block.push(address),
                Err(_) => {
                    break Err(LookupError::Address { path: path.clone(), line, text: text.to_owned() });
                }
            },
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        if block.is_v4.len() == BLOCK {
            output.print(block.look_up(&tables))?;
            block.clear();
        }
    };
    output.print(block.look_up(&tables))?;
    outcome?;
    output.end()
}

/// Standard output: lines, or one JSON array of strings and nulls.
struct Printer<W> {
    output: W,
    json: bool,
    printed: usize,
}

impl<W: Write> Printer<W> {
    fn print(&mut self, lines: &str) -> Result<(), CliError> {
        if !self.json {
            return Ok(self.output.write_all(lines.as_bytes())?);
        }
        let mut text = String::new();
        for line in lines.lines() {
            text.push(if self.printed == 0 { '[' } else { ',' });
            text.push_str(&if line == "-" { "null".to_owned() } else { format!("\"{line}\"") });
            self.printed += 1;
        }
        Ok(self.output.write_all(text.as_bytes())?)
    }

    fn end(&mut self) -> Result<(), CliError> {
        if self.json {
            let end: &[u8] = if self.printed == 0 { b"[]\n" } else { b"]\n" };
            self.output.write_all(end)?;
        }
        Ok(self.output.flush()?)
    }
}
