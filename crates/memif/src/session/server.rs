// SPDX-License-Identifier: Apache-2.0
//! The server: says what it offers, and takes the client's memory and rings.

use std::os::fd::OwnedFd;

use netvm_notify::is_eventfd;

use super::{NAME, Step, Terms};
use crate::link::{End, Link, Rx, Tx};
use crate::memory::{Region, Regions, Ring};
use crate::protocol::{AddRing, Hello, Init, Message, VERSION, secret_bytes};
use crate::status::Fault;

/// How far the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not said which interface it wants.
    New,
    /// It passes memory and rings.
    Adding,
    Connected,
}

/// A ring of the client, with its eventfd.
#[derive(Debug)]
struct Added {
    ring: AddRing,
    interrupt: OwnedFd,
}

/// State of a connection with a client.
#[derive(Debug)]
pub(super) struct Server {
    terms: Terms,
    stage: Stage,
    regions: Regions,
    /// Rings to the server, and to the client, in the order of their numbers.
    to_server: Vec<Added>,
    to_client: Vec<Added>,
}

impl Server {
    pub(super) fn new(terms: Terms) -> Self {
        let (to_server, to_client) = (Vec::new(), Vec::new());
        Self { terms, stage: Stage::New, regions: Regions::default(), to_server, to_client }
    }

    pub(super) const fn is_connected(&self) -> bool {
        matches!(self.stage, Stage::Connected)
    }

    /// The first message.
    pub(super) fn hello(&self) -> Message {
        let last = self.terms.options.queues - 1;
        Message::Hello(Hello {
            name: NAME.to_owned(),
            min_version: VERSION,
            max_version: VERSION,
            max_region: Regions::MAX_REGIONS - 1,
            max_to_client: last,
            max_to_server: last,
            max_log2_ring_size: self.terms.options.log2_ring_size,
        })
    }

    pub(super) fn handle(&mut self, message: Message, fd: Option<OwnedFd>) -> Result<Step, Fault> {
        match (self.stage, message) {
            (Stage::New, Message::Init(init)) => {
                self.check(&init)?;
                self.stage = Stage::Adding;
                Ok(Message::Ack.into())
            }
            (Stage::Adding, Message::AddRegion { index, bytes }) => {
                let file = fd.ok_or("a region without a file")?;
                if usize::from(index) != self.regions.len() || index >= Regions::MAX_REGIONS {
                    return Err("regions that are too many, or not in order".into());
                }
                self.regions.push(Region::map(file, bytes)?);
                Ok(Message::Ack.into())
            }
            (Stage::Adding, Message::AddRing(ring)) => {
                let interrupt = fd.ok_or("a ring without an eventfd")?;
                self.add(ring, interrupt)?;
                Ok(Message::Ack.into())
            }
            (Stage::Adding, Message::Connect { .. }) => {
                let link = self.link()?;
                self.stage = Stage::Connected;
                let interface = self.terms.options.name.clone();
                Ok(Step { link: Some(link), answer: Some((Message::Connected { interface }, None)) })
            }
            (_, Message::Ack) => Ok(Step::default()),
            _ => Err("a message out of turn".into()),
        }
    }

    /// Whether the client wants this interface, and may have it.
    fn check(&self, init: &Init) -> Result<(), Fault> {
        let options = &self.terms.options;
        if init.version != VERSION {
            return Err(Fault::Version { min: init.version, max: init.version });
        }
        if init.id != options.id {
            return Err(Fault::Id { asked: init.id, own: options.id });
        }
        if init.mode != 0 {
            return Err(Fault::Mode(init.mode));
        }
        if let Some(secret) = &options.secret {
            // All bytes are compared, so that the time tells nothing of them.
            let differs = |all, (a, b): (&u8, &u8)| all | (a ^ b);
            if secret_bytes(secret).iter().zip(&init.secret).fold(0, differs) != 0 {
                return Err(Fault::Secret);
            }
        }
        Ok(())
    }

    fn add(&mut self, ring: AddRing, interrupt: OwnedFd) -> Result<(), Fault> {
        let options = &self.terms.options;
        let rings = if ring.to_server { &mut self.to_server } else { &mut self.to_client };
        if usize::from(ring.index) != rings.len() {
            return Err("rings that are not in order".into());
        }
        if ring.index >= options.queues {
            return Err(Fault::Rings(options.queues));
        }
        if ring.log2_size > options.log2_ring_size {
            return Err(Fault::RingSize { log2: ring.log2_size, most: options.log2_ring_size });
        }
        if !is_eventfd(&interrupt) {
            return Err(Fault::NotAnEventfd);
        }
        rings.push(Added { ring, interrupt });
        Ok(())
    }

    /// The link, once all rings are there.
    fn link(&mut self) -> Result<Link, Fault> {
        if self.to_server.is_empty() && self.to_client.is_empty() {
            return Err("a connection without rings".into());
        }
        let regions = &self.regions;
        let end = |Added { ring, interrupt }| -> Result<End, Fault> {
            let region = regions.get(ring.region).ok_or("a ring in a region that does not exist")?;
            let memory = Ring::at(region, ring.offset, ring.log2_size).ok_or("a ring outside its region")?;
            if !memory.has_cookie() {
                return Err("a ring without its cookie".into());
            }
            Ok(End::of_server(memory, regions.clone(), interrupt))
        };
        let rx: Result<_, _> = self.to_server.drain(..).map(|added| end(added).map(Rx::new)).collect();
        let tx: Result<_, _> = self.to_client.drain(..).map(|added| end(added).map(Tx::new)).collect();
        Ok(Link::new(rx?, tx?, &self.terms.alarm))
    }
}
