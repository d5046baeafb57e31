// SPDX-License-Identifier: Apache-2.0
//! Handles the client's requests.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netvm_notify::{EpollWaiter, is_eventfd};

use super::info::{
    BAR0, BAR1, BAR2, CONFIG, EINVAL, INTX, MSIX, device_info, irq_info, region_bytes, region_info,
};
use super::message::{MAX_DATA, Reply, command, long, word};
use super::pci_config::PciConfig;
use super::stream::Message;
use crate::files::{CONNECTION, FIRST_MEMORY, FIRST_VECTOR, Files, FilesLeft, LINE, PAGES, STATE, UNMASK};
use crate::memory::{MapError, MapRequest};
use crate::nic::{Device, Doorbells, Interrupts, Model, VECTORS};

const ENOTSUP: u32 = 95;
const SET_NONE: u32 = 1;
const SET_BOOL: u32 = 1 << 1;
const SET_EVENTFD: u32 = 1 << 2;
const SET_MASK: u32 = 1 << 3;
const SET_UNMASK: u32 = 1 << 4;
const SET_TRIGGER: u32 = 1 << 5;
const MAP_WRITE: u32 = 1 << 1;
const UNMAP_ALL: u32 = 1 << 1;

/// Memory that a client passed and that netvm does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Memory(MapError),
    /// An interrupt's descriptor.
    NotAnEventfd,
}

/// What a message asks for interrupts: an action, and the kind of the data with it.
#[derive(Clone, Copy)]
struct Trigger {
    action: u32,
    data: u32,
}

/// A client's state besides the card's.
#[derive(Debug)]
pub(crate) struct Session {
    model: Model,
    doorbells: Doorbells,
    config: PciConfig,
    has_version: bool,
    /// Reports the eventfd by which the client unmasks the line without a message.
    unmask: EpollWaiter,
    unmask_fd: Option<OwnedFd>,
    files: Files,
    /// Why memory or an interrupt was refused.
    pub(crate) refused: Option<Refused>,
}

impl Session {
    /// Without a store for its files.
    pub(crate) fn new(model: Model, doorbells: Doorbells) -> rustix::io::Result<Self> {
        let (config, files) = (PciConfig::new(model), Files::default());
        let unmask = EpollWaiter::new()?;
        Ok(Self {
            model,
            doorbells,
            config,
            has_version: false,
            unmask,
            unmask_fd: None,
            files,
            refused: None,
        })
    }

    /// With a store.
    pub(crate) fn with(self, files: Files) -> Self {
        Self { files, ..self }
    }

    /// A new client: keeps what another process needs to go on.
    pub(crate) fn begin(&mut self, device: &mut Device, connection: impl AsFd) {
        self.save(device, None);
        device.state.set_posts_doorbells(true);
        self.files.forget();
        self.files.put(PAGES, device.pages.file());
        self.files.put(STATE, device.state.file());
        self.files.put(CONNECTION, connection);
    }

    /// The client has gone. Returns the place for the next one's files.
    pub(crate) fn end(mut self) -> Files {
        self.files.forget();
        self.files
    }

    /// The same, but the files stay.
    pub(crate) fn leave(self) -> Files {
        self.files
    }

    /// Goes on with the client of another process: connects its memory and lines to the card. `None` if files are
    /// missing.
    pub(crate) fn reopen(mut self, device: &mut Device, mut left: FilesLeft) -> Option<Self> {
        let ranges = device.load(|from| {
            self.has_version = from.next() != 0;
            let ranges =
                (0..from.next() as usize).map(|n| MapRequest::from_words(from.range(n))).collect::<Vec<_>>();
            self.config.load(from);
            ranges
        });
        for (request, file) in ranges {
            device.memory.map(&request, left.get(FIRST_MEMORY + file)?).ok()?;
        }
        device.interrupts.set_line(left.take(LINE));
        for vector in 0..VECTORS {
            device.interrupts.set_vector(vector, left.take(FIRST_VECTOR + vector as u32))?;
        }
        self.watch(left.take(UNMASK)).ok()?;
        Some(self)
    }

    /// Saves the state that this request has brought about.
    pub(crate) fn save(&mut self, device: &mut Device, request: Option<u16>) {
        let is_changed = device.memory.take_changed();
        let mut to = device.state.save();
        to.put(self.has_version.into());
        to.put(device.memory.count() as u32);
        self.config.save(&mut to);
        device.save(&mut to);
        if is_changed {
            to.put_table(device.memory.words());
        }
        to.finish(request);
        if is_changed {
            for number in device.memory.take_unused() {
                self.files.set(FIRST_MEMORY + number, None);
            }
        }
    }

    /// Whether the client has begun with the protocol.
    pub(crate) const fn has_version(&self) -> bool {
        self.has_version
    }

    /// Becomes readable when the client unmasks the line.
    pub(crate) fn unmasks(&self) -> BorrowedFd<'_> {
        self.unmask.as_fd()
    }

    /// The client has unmasked the line, and its eventfd may be read.
    pub(crate) fn unmask(&self, device: &mut Device) {
        self.unmask.drain();
        device.interrupts.set_masked(false);
    }

    /// Handles a request. An error is the number that the client gets.
    pub(crate) fn handle(&mut self, device: &mut Device, message: Message) -> Result<Reply, u32> {
        let Message { header, body, fd } = message;
        if header.command == command::VERSION {
            return self.version(&body).map(Reply::from);
        }
        if !self.has_version {
            return Err(EINVAL);
        }
        match header.command {
            command::DMA_MAP => self.map(device, &body, fd),
            command::DMA_UNMAP => unmap(device, &body),
            command::DEVICE_GET_INFO => Ok(device_info()),
            command::DEVICE_GET_REGION_INFO => region_info(self.model, self.doorbells, &body),
            command::DEVICE_GET_IRQ_INFO => irq_info(self.model, &body),
            command::DEVICE_SET_IRQS => self.set_irqs(device, &body, fd),
            command::REGION_READ => self.read(device, &body),
            command::REGION_WRITE => self.write(device, &body),
            command::DEVICE_RESET => {
                self.config = PciConfig::new(self.model);
                device.is_bus_master = false;
                device.reset();
                Ok(Reply::default())
            }
            _ => Err(ENOTSUP),
        }
    }

    fn version(&mut self, body: &[u8]) -> Result<Vec<u8>, u32> {
        const VERSION: [u8; 4] = [0; 4];
        // The major version is 0; a minor one that is newer than this side's is answered with this side's.
        if body.get(..2) != Some(&VERSION[..2]) || body.len() < VERSION.len() || self.has_version {
            return Err(EINVAL);
        }
        self.has_version = true;
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":1,\"max_data_xfer_size\":{MAX_DATA},\"pgsizes\":4096}}}}\0"
        );
        Ok([&VERSION[..], capabilities.as_bytes()].concat())
    }

    fn map(&mut self, device: &mut Device, body: &[u8], file: Option<OwnedFd>) -> Result<Reply, u32> {
        let field = |at| long(body, at).ok_or(EINVAL);
        let writable = word(body, 4).ok_or(EINVAL)? & MAP_WRITE != 0;
        let request = MapRequest { offset: field(8)?, first: field(16)?, bytes: field(24)?, writable };
        // Memory without a file, such as firmware, cannot be reached by the card.
        let Some(file) = file else { return Ok(Reply::default()) };
        let new = device.memory.map(&request, &file).map_err(|error| {
            self.refused = Some(Refused::Memory(error));
            EINVAL
        })?;
        if let Some(number) = new {
            self.files.put(FIRST_MEMORY + number, file);
        }
        Ok(Reply::default())
    }

    fn set_irqs(&mut self, device: &mut Device, body: &[u8], fd: Option<OwnedFd>) -> Result<Reply, u32> {
        let field = |at| word(body, at).ok_or(EINVAL);
        let (flags, index, start, count) = (field(4)?, field(8)?, field(12)?, field(16)?);
        if let Some(fd) = &fd
            && !is_eventfd(fd)
        {
            self.refused = Some(Refused::NotAnEventfd);
            return Err(EINVAL);
        }
        let data = flags & (SET_NONE | SET_BOOL | SET_EVENTFD);
        if index == MSIX && self.model.vectors() > 0 {
            let trigger = Trigger { action: flags & (SET_MASK | SET_UNMASK | SET_TRIGGER), data };
            let end = start.checked_add(count).filter(|end| *end as usize <= VECTORS).ok_or(EINVAL)?;
            return self.set_vectors(&mut device.interrupts, trigger, start..end, fd);
        }
        if index != INTX {
            // The others have no vectors.
            return if count == 0 { Ok(Reply::default()) } else { Err(EINVAL) };
        }
        if start != 0 || count > 1 {
            return Err(EINVAL);
        }
        match (flags & (SET_MASK | SET_UNMASK | SET_TRIGGER), data) {
            (SET_TRIGGER, SET_EVENTFD) => {
                self.files.set(LINE, fd.as_ref());
                device.interrupts.set_line(fd);
            }
            (SET_TRIGGER, SET_NONE) if count == 0 => {
                self.files.set(LINE, None);
                device.interrupts.set_line(None);
                self.watch(None)?;
            }
            (SET_UNMASK, SET_EVENTFD) => self.watch(fd)?,
            (SET_MASK, SET_NONE) => device.interrupts.set_masked(true),
            (SET_UNMASK, SET_NONE) => device.interrupts.set_masked(false),
            _ => return Err(EINVAL),
        }
        Ok(Reply::default())
    }

    /// Connects MSI-X vectors from `start` on, or disconnects them: all, if `count` is 0. A message has one descriptor
    /// at most.
    fn set_vectors(
        &mut self,
        interrupts: &mut Interrupts,
        trigger: Trigger,
        vectors: Range<u32>,
        fd: Option<OwnedFd>,
    ) -> Result<Reply, u32> {
        match (trigger.action, trigger.data, fd) {
            (SET_TRIGGER, SET_NONE, None) if vectors.is_empty() => {
                (0..VECTORS as u32).for_each(|vector| self.files.set(FIRST_VECTOR + vector, None));
                interrupts.clear_vectors();
            }
            (SET_TRIGGER, SET_EVENTFD, fd) if fd.is_none() || vectors.len() == 1 => {
                let mut fd = fd;
                for vector in vectors {
                    self.files.set(FIRST_VECTOR + vector, fd.as_ref());
                    interrupts.set_vector(vector as usize, fd.take()).ok_or(EINVAL)?;
                }
            }
            _ => return Err(EINVAL),
        }
        Ok(Reply::default())
    }

    fn watch(&mut self, fd: Option<OwnedFd>) -> Result<(), u32> {
        self.files.set(UNMASK, fd.as_ref());
        if let Some(before) = self.unmask_fd.take() {
            self.unmask.remove(&before);
        }
        if let Some(fd) = fd {
            self.unmask.add(&fd).map_err(|_| EINVAL)?;
            self.unmask_fd = Some(fd);
        }
        Ok(())
    }

    fn read(&self, device: &mut Device, body: &[u8]) -> Result<Reply, u32> {
        let (region, at, count) = access(self.model, body)?;
        let mut reply = body.get(..16).unwrap_or_default().to_vec();
        let mut data = [0; MAX_DATA];
        let data = data.get_mut(..count).ok_or(EINVAL)?;
        match region {
            CONFIG => self.config.read(at as usize, data),
            BAR0 => each_word(at, count, |word, range, within| {
                data[range].copy_from_slice(&device.read(word).to_le_bytes()[within]);
            }),
            BAR1 | BAR2 => each_word(at, count, |word, range, within| {
                data[range].copy_from_slice(&device.read_io(word).to_le_bytes()[within]);
            }),
            _ => {}
        }
        reply.extend_from_slice(data);
        Ok(reply.into())
    }

    fn write(&mut self, device: &mut Device, body: &[u8]) -> Result<Reply, u32> {
        let (region, at, count) = access(self.model, body)?;
        let data = body.get(16..16 + count).ok_or(EINVAL)?;
        // A register is written as a whole; a driver that writes a part of one writes zeros to the rest.
        let value = |range: std::ops::Range<usize>, within: std::ops::Range<usize>| {
            let mut bytes = [0; 4];
            bytes[within].copy_from_slice(&data[range]);
            u32::from_le_bytes(bytes)
        };
        match region {
            CONFIG => {
                self.config.write(at as usize, data);
                device.is_bus_master = self.config.is_bus_master();
            }
            BAR0 => each_word(at, count, |word, range, within| device.write(word, value(range, within))),
            BAR1 | BAR2 => {
                each_word(at, count, |word, range, within| device.write_io(word, value(range, within)));
            }
            _ => {}
        }
        Ok(body.get(..16).unwrap_or_default().to_vec().into())
    }
}

/// Region, offset and count of an access, within the region.
fn access(model: Model, body: &[u8]) -> Result<(u32, u64, usize), u32> {
    let (at, region, count) = (long(body, 0), word(body, 8), word(body, 12));
    let (Some(at), Some(region), Some(count)) = (at, region, count) else { return Err(EINVAL) };
    let end = at.checked_add(count.into()).ok_or(EINVAL)?;
    if count as usize > MAX_DATA || end > region_bytes(model, region) {
        return Err(EINVAL);
    }
    Ok((region, at, count as usize))
}

/// Cuts an access into registers: the register's offset, the bytes of the data, and those within the register.
fn each_word(
    at: u64,
    count: usize,
    mut each: impl FnMut(u32, std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < count {
        // Within a region, so that it fits.
        let now = at as u32 + done as u32;
        let within = (now % 4) as usize;
        let here = (4 - within).min(count - done);
        each(now - within as u32, done..done + here, within..within + here);
        done += here;
    }
}

fn unmap(device: &mut Device, body: &[u8]) -> Result<Reply, u32> {
    let (flags, first, bytes) = (word(body, 4), long(body, 8), long(body, 16));
    let (Some(flags), Some(first), Some(bytes)) = (flags, first, bytes) else { return Err(EINVAL) };
    if flags & UNMAP_ALL != 0 {
        device.memory.clear();
    } else {
        device.memory.unmap(first, bytes).map_err(|_| EINVAL)?;
    }
    Ok(body.get(..24).unwrap_or_default().to_vec().into())
}
