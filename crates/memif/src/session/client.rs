// SPDX-License-Identifier: Apache-2.0
//! The client: makes memory as the server allows it, and passes it, one message after the other.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use netvm_notify::new_eventfd;

use super::{NAME, Outgoing, Step, Terms};
use crate::link::{End, Link, Rx, Tx};
use crate::memory::{Own, Shape};
use crate::protocol::{AddRing, Hello, Init, Message, VERSION, secret_bytes};
use crate::status::Fault;

/// State of a connection with a server.
#[derive(Debug)]
pub(super) struct Client {
    terms: Terms,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The server has not said what it offers.
    New,
    /// Messages wait for the answer to the one before; then the link is used.
    Adding {
        outgoing: VecDeque<Outgoing>,
        link: Link,
    },
    /// The server has all.
    Connecting(Link),
    Connected,
}

impl Client {
    pub(super) const fn new(terms: Terms) -> Self {
        Self { terms, stage: Stage::New }
    }

    pub(super) const fn is_connected(&self) -> bool {
        matches!(self.stage, Stage::Connected)
    }

    pub(super) fn handle(&mut self, message: &Message) -> Result<Step, Fault> {
        match (std::mem::replace(&mut self.stage, Stage::New), message) {
            (Stage::New, Message::Hello(hello)) => {
                let (mut outgoing, link) = self.begin(hello)?;
                let first = outgoing.pop_front().map(Step::from).unwrap_or_default();
                self.stage = Stage::Adding { outgoing, link };
                Ok(first)
            }
            (Stage::Adding { mut outgoing, link }, Message::Ack) => match outgoing.pop_front() {
                Some(next) => {
                    self.stage = Stage::Adding { outgoing, link };
                    Ok(next.into())
                }
                None => {
                    self.stage = Stage::Connecting(link);
                    let interface = self.terms.options.name.clone();
                    Ok(Message::Connect { interface }.into())
                }
            },
            (Stage::Connecting(link), Message::Connected { .. }) => {
                // Servers set the rings back until now. Buffers that were offered before would be lost.
                self.stage = Stage::Connected;
                Ok(Step { link: Some(link), answer: None })
            }
            _ => Err("a message out of turn".into()),
        }
    }

    /// Makes the memory. Returns what to send, in order, and the link.
    fn begin(&self, hello: &Hello) -> Result<(VecDeque<Outgoing>, Link), Fault> {
        let options = &self.terms.options;
        if hello.min_version > VERSION || hello.max_version < VERSION {
            return Err(Fault::Version { min: hello.min_version, max: hello.max_version });
        }
        let shape = Shape {
            to_server: options.queues.min(hello.max_to_server.saturating_add(1)),
            to_client: options.queues.min(hello.max_to_client.saturating_add(1)),
            log2_ring_size: options.log2_ring_size.min(hello.max_log2_ring_size),
            buffer: options.buffer_size,
        };
        let (own, file) = Own::new(shape)?;
        let init = Init {
            version: VERSION,
            id: options.id,
            mode: 0,
            secret: secret_bytes(options.secret.as_deref().unwrap_or_default()),
            name: NAME.to_owned(),
        };
        let mut outgoing = VecDeque::from([
            (Message::Init(init), None),
            (Message::AddRegion { index: 0, bytes: shape.bytes() }, Some(file)),
        ]);
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for number in 0..shape.to_server + shape.to_client {
            let (end, message) = end(&own, number)?;
            if number < shape.to_server {
                tx.push(Tx::new(end));
            } else {
                rx.push(Rx::new(end));
            }
            outgoing.push_back(message);
        }
        Ok((outgoing, Link::new(rx, tx, &self.terms.alarm)))
    }
}

/// The end of a ring, and the message with the ring.
fn end(own: &Own, number: u16) -> Result<(End, Outgoing), Fault> {
    let shape = own.shape();
    let to_server = number < shape.to_server;
    let index = if to_server { number } else { number - shape.to_server };
    let ring = own.ring(number).ok_or(Fault::NoMemory(shape.bytes()))?;
    let interrupt: OwnedFd = new_eventfd().map_err(|_| Fault::NoFiles)?;
    let copy = interrupt.try_clone().map_err(|_| Fault::NoFiles)?;
    let added =
        AddRing { to_server, index, region: 0, offset: shape.ring(number), log2_size: shape.log2_ring_size };
    let end = End::of_client(ring, own.regions(), own.buffers(number), interrupt);
    Ok((end, (Message::AddRing(added), Some(copy))))
}
