// SPDX-License-Identifier: Apache-2.0
//! A port: a socket, and the thread that serves it.

use std::ops::Deref;
use std::sync::Arc;

use netvm_guest_socket::{Listener, ServeError, ServedPort};

use crate::options::{Options, Role};
use crate::queue::{Queue, Shared};
use crate::session::largest;
use crate::status::Status;
use crate::thread::Thread;

/// A port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its socket, or the system.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// More memory than descriptors can tell of.
    #[error(
        "{queues} queues with rings of {ring_size} buffers of {buffer_size} bytes take {bytes} bytes, and memif allows \
         2^32: lower `ring_size`, `buffer_size` or `queues`"
    )]
    Memory {
        /// Queues.
        queues: u16,
        /// Descriptors of a ring.
        ring_size: u32,
        /// Bytes of a buffer.
        buffer_size: u32,
        /// What they take.
        bytes: u64,
    },
}

/// An open port. Dropping it disconnects the peer, and removes the socket if the port made it.
#[derive(Debug)]
pub struct Port(ServedPort<Status>);

impl Port {
    /// Serves a socket, or connects to one, again and again. There is one queue for each of `options.queues`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: &Options) -> Result<(Self, Vec<Queue>), OpenError> {
        let path = &options.path;
        let listener = match options.role {
            Role::Server => Some(Listener::bind_packets(path).map_err(ServeError::socket(path))?),
            Role::Client => {
                check_memory(options)?;
                None
            }
        };
        let shared = Arc::new(Shared::new(options.queues).map_err(ServeError::system(path))?);
        let serve = {
            let (options, shared) = (options.clone(), Arc::clone(&shared));
            move |reports| Thread::new(options, listener, shared, reports).run()
        };
        let port = ServedPort::start("netvm-memif", Status::default(), serve);
        let queues = (0..usize::from(options.queues)).map(|n| Queue::new(Arc::clone(&shared), n)).collect();
        Ok((Self(port.map_err(ServeError::system(path))?), queues))
    }
}

impl Deref for Port {
    type Target = ServedPort<Status>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Whether descriptors can tell of all the memory that a client makes.
fn check_memory(options: &Options) -> Result<(), OpenError> {
    let Options { queues, buffer_size, log2_ring_size, .. } = *options;
    let bytes = largest(options).bytes();
    if bytes > u64::from(u32::MAX) {
        return Err(OpenError::Memory { queues, ring_size: 1 << log2_ring_size, buffer_size, bytes });
    }
    Ok(())
}
