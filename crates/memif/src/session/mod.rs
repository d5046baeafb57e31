// SPDX-License-Identifier: Apache-2.0
//! How a connection begins: messages in, answers and a link out. Nothing here waits or has a socket.

mod client;
mod server;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::link::Link;
use crate::memory::Shape;
use crate::options::{Options, Role};
use crate::protocol::Message;
use crate::status::Fault;
use client::Client;
use server::Server;

/// What netvm calls itself.
const NAME: &str = "netvm";

/// A message to send, with a descriptor.
pub(crate) type Outgoing = (Message, Option<OwnedFd>);

/// What follows from a message.
#[derive(Debug, Default)]
pub struct Step {
    /// The connection is up.
    pub link: Option<Link>,
    /// What to send, once the link is in use.
    pub answer: Option<Outgoing>,
}

impl From<Message> for Step {
    fn from(answer: Message) -> Self {
        Self { link: None, answer: Some((answer, None)) }
    }
}

impl From<Outgoing> for Step {
    fn from(answer: Outgoing) -> Self {
        Self { link: None, answer: Some(answer) }
    }
}

/// What both roles need to know.
#[derive(Clone, Debug)]
struct Terms {
    options: Options,
    /// An eventfd that a worker signals when the peer breaks a rule.
    alarm: Arc<OwnedFd>,
}

/// The beginning of one connection, up to its link.
#[derive(Debug)]
pub struct Session(Kind);

#[derive(Debug)]
enum Kind {
    Server(Server),
    Client(Client),
}

impl Session {
    /// A new connection, and what to send first.
    #[must_use]
    pub fn new(options: &Options, alarm: &Arc<OwnedFd>) -> (Self, Step) {
        let terms = Terms { options: options.clone(), alarm: Arc::clone(alarm) };
        match options.role {
            Role::Server => {
                let server = Server::new(terms);
                let hello = server.hello().into();
                (Self(Kind::Server(server)), hello)
            }
            Role::Client => (Self(Kind::Client(Client::new(terms))), Step::default()),
        }
    }

    /// What follows from a message of the peer.
    ///
    /// # Errors
    /// [`Fault`]: the connection must end.
    pub fn handle(&mut self, message: Message, fd: Option<OwnedFd>) -> Result<Step, Fault> {
        if let Message::Disconnect { text } = message {
            return Err(Fault::Refused(text));
        }
        match &mut self.0 {
            Kind::Server(server) => server.handle(message, fd),
            Kind::Client(client) => client.handle(&message),
        }
    }

    /// Whether the connection is up.
    pub(crate) const fn is_connected(&self) -> bool {
        match &self.0 {
            Kind::Server(server) => server.is_connected(),
            Kind::Client(client) => client.is_connected(),
        }
    }
}

/// The most memory that a client makes.
pub(crate) const fn largest(options: &Options) -> Shape {
    Shape {
        to_server: options.queues,
        to_client: options.queues,
        log2_ring_size: options.log2_ring_size,
        buffer: options.buffer_size,
    }
}
