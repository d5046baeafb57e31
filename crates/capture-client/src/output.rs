// SPDX-License-Identifier: Apache-2.0
//! Where a capture goes: a pcapng file, several that take turns, a pipe, an interface, or text.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use netvm_capture::blocks;
use netvm_vnet::ListeningInterface;

/// Bytes gathered before they are written.
pub(crate) const GATHERED: usize = 1 << 20;

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A line of text for each packet, on standard output.
    Lines,
    /// pcapng on standard output.
    Stdout,
    /// A pcapng file, or several.
    File(PathBuf, Option<Files>),
    /// A network interface of this name, which is made, for programs that listen.
    Interface(String),
}

/// Files that take turns: the oldest is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// How many.
    pub count: u32,
    /// Bytes of each.
    pub bytes: u64,
}

/// The open output.
#[derive(Debug)]
pub struct Output {
    target: Target,
    file: Option<File>,
    interface: Option<ListeningInterface>,
    /// Number of the file that is written to.
    number: u32,
    /// Complete bytes in it.
    written: u64,
    /// Bytes written to all files.
    total: u64,
    head: Vec<u8>,
    pub(crate) buffer: Vec<u8>,
}

impl Output {
    /// Opens the output.
    ///
    /// # Errors
    /// The kernel's error. pcapng is not written to a terminal.
    pub fn open(target: Target) -> io::Result<Self> {
        if target == Target::Stdout && io::stdout().is_terminal() {
            return Err(io::Error::other(
                "packets are not text: give a file, or a program behind a pipe, such as `| tcpdump -r -`",
            ));
        }
        let mut output = Self {
            target,
            file: None,
            interface: None,
            number: 0,
            written: 0,
            total: 0,
            head: Vec::new(),
            buffer: Vec::new(),
        };
        output.open_file()?;
        if let Target::Interface(name) = &output.target {
            output.interface = Some(ListeningInterface::open(name).map_err(io::Error::other)?);
        }
        Ok(output)
    }

    /// The name of what is written to.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.interface, self.path()) {
            (Some(interface), _) => format!("interface {}", interface.name()),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => "standard output".to_owned(),
        }
    }

    /// `capture.pcapng`, or for files that take turns `capture-1.pcapng`.
    fn path(&self) -> Option<PathBuf> {
        match &self.target {
            Target::Lines | Target::Stdout | Target::Interface(_) => None,
            Target::File(path, None) => Some(path.clone()),
            Target::File(path, Some(_)) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                let extension =
                    path.extension().map_or_else(String::new, |e| format!(".{}", e.to_string_lossy()));
                Some(path.with_file_name(format!("{stem}-{}{extension}", self.number + 1)))
            }
        }
    }

    fn open_file(&mut self) -> io::Result<()> {
        if let Some(path) = self.path() {
            let failed =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            self.file = Some(File::create(&path).map_err(failed)?);
        }
        self.written = 0;
        Ok(())
    }

    /// Bytes that were written.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Whether packets become text.
    pub(crate) fn is_text(&self) -> bool {
        self.target == Target::Lines
    }

    /// Whether packets become a pcapng file.
    pub(crate) fn is_pcapng(&self) -> bool {
        matches!(self.target, Target::Stdout | Target::File(..))
    }

    /// The interface that shows the packets, if they go to one.
    pub(crate) fn interface(&self) -> Option<&ListeningInterface> {
        self.interface.as_ref()
    }

    /// The beginning of each file.
    pub(crate) fn begin<'a>(
        &mut self,
        interfaces: impl IntoIterator<Item = (&'a str, &'a str)>,
        snaplen: u32,
    ) {
        if self.is_pcapng() {
            let application = concat!("netvm ", env!("CARGO_PKG_VERSION"));
            blocks::begin(&mut self.head, application, snaplen, interfaces);
            self.buffer.extend_from_slice(&self.head);
        }
    }

    /// Writes what was gathered. After an error, a file ends with the last packet that it has whole.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.turn()?;
        let outcome = match &mut self.file {
            Some(file) => file.write_all(&self.buffer),
            None => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&self.buffer).and_then(|()| stdout.flush())
            }
        };
        if let Err(error) = outcome {
            if let Some(file) = &self.file {
                // The first error counts.
                let _ = file.set_len(self.written);
            }
            return Err(error);
        }
        self.written += self.buffer.len() as u64;
        self.total += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Goes on in the next file if this one is full, before anything is written to it: no file is empty.
    fn turn(&mut self) -> io::Result<()> {
        let Target::File(_, Some(files)) = self.target else { return Ok(()) };
        if self.written < files.bytes {
            return Ok(());
        }
        self.number = (self.number + 1) % files.count.max(1);
        self.open_file()?;
        self.buffer.splice(..0, self.head.iter().copied());
        Ok(())
    }

    /// Bytes to gather before a write: fewer if files are small.
    pub(crate) fn gathers(&self) -> usize {
        match self.target {
            Target::File(_, Some(files)) => GATHERED.min(files.bytes as usize),
            _ => GATHERED,
        }
    }
}

#[cfg(test)]
mod tests {
    use netvm_capture::CaptureReader;

    use super::*;

    #[test]
    fn files_take_turns_and_each_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring.pcapng");
        let files = Files { count: 3, bytes: 1000 };
        let mut output = Output::open(Target::File(path, Some(files))).unwrap();
        output.begin([("a", "port a")], 0);
        for n in 0..40u8 {
            let time = netvm_capture::Timestamp(u64::from(n));
            let packet = blocks::LivePacket { interface: 0, time, original: 60, data: &[n; 60], lost: 0 };
            blocks::packet(&mut output.buffer, &packet, &blocks::PacketOptions::default());
            output.flush().unwrap();
        }
        let mut last = 0;
        for n in 1..=3 {
            let mut reader = CaptureReader::open(&folder.path().join(format!("ring-{n}.pcapng"))).unwrap();
            while let Some(frame) = reader.next_frame().unwrap() {
                last = last.max(frame.data[0]);
            }
        }
        assert_eq!(last, 39);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_full_disk_leaves_whole_packets() {
        let mut output = Output::open(Target::File("/dev/full".into(), None)).unwrap();
        output.begin([("a", "port a")], 0);
        assert_eq!(output.flush().unwrap_err().raw_os_error(), Some(28));
        let error = Output::open(Target::File("/no/such/folder/a.pcapng".into(), None)).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder/a.pcapng"), "{error}");
    }
}
