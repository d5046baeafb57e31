// SPDX-License-Identifier: Apache-2.0
//! A card without its socket and thread, for fuzzing: the caller passes a client's messages.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::nic::{Device, Doorbells, Model};
use crate::ring::{Queue, Shared};
use crate::vfio::message::{HEADER, Header};
use crate::vfio::session::Session;
use crate::vfio::stream::Message;

/// The card and its client's session.
#[derive(Debug)]
pub struct Card {
    shared: Arc<Shared>,
    session: Session,
}

impl Card {
    /// A card of a model with this MAC address, and its queue.
    ///
    /// # Errors
    /// The process has no memory or descriptors.
    pub fn new(model: Model, mac: [u8; 6]) -> std::io::Result<(Self, Queue)> {
        let shared = Arc::new(Shared::new(Device::new(model, mac)?)?);
        let session = Session::new(model, Doorbells::Mapped)?;
        Ok((Self { shared: Arc::clone(&shared), session }, Queue::new(shared)))
    }

    /// Handles a message with its descriptor. Returns the reply, or `None` if the connection would end.
    pub fn handle(&mut self, bytes: &[u8], fd: Option<OwnedFd>) -> Option<Vec<u8>> {
        let header = Header::read(bytes.first_chunk::<HEADER>()?)?;
        let body = bytes.get(HEADER..HEADER + header.body)?.to_vec();
        let mut device = self.shared.lock();
        let outcome = self.session.handle(&mut device, Message { header, body, fd });
        self.session.save(&mut device, Some(header.id));
        self.shared.note_activity(&device);
        drop(device);
        if self.session.refused.take().is_some() {
            return None;
        }
        Some(match outcome {
            Ok(reply) => header.reply(&reply.body),
            Err(number) => header.error(number),
        })
    }
}
