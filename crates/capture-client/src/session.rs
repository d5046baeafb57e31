// SPDX-License-Identifier: Apache-2.0
//! A capture that runs: the connection to netvmd, and the workers' rings.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netvm_api::{CaptureInfo, CaptureRequest, Client, ClientError};
use netvm_capture_ring::{HandoverError, Reader, RingError, receive_handover};

/// Limit for netvmd to hand the rings over.
const HANDOVER: Duration = Duration::from_secs(10);

/// A capture does not start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// netvmd refused it, or cannot be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The rings did not arrive.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// A ring cannot be used.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// A capture that runs; dropping it ends the capture.
#[derive(Debug)]
pub struct Session {
    pub(crate) info: CaptureInfo,
    pub(crate) rings: Vec<Reader>,
    /// netvmd closes it when the capture ends.
    stream: Option<UnixStream>,
}

impl Session {
    /// Starts a capture.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn start(client: &Client, request: &CaptureRequest) -> Result<Self, SessionError> {
        let mut stream = client.capture(request).await?;
        let socket = |error: std::io::Error| HandoverError::Socket(error);
        stream.set_read_timeout(Some(HANDOVER)).map_err(socket)?;
        // netvmd waits for it: descriptors would be lost if HTTP read them with the head of its answer.
        stream.write_all(&[1]).map_err(socket)?;
        let (info, fds) = receive_handover::<CaptureInfo>(&stream)?;
        stream.set_nonblocking(true).map_err(socket)?;
        let rings = fds.into_iter().map(Reader::open).collect::<Result<_, _>>()?;
        Ok(Self { info, rings, stream: Some(stream) })
    }

    /// A capture whose rings are at hand, as where the engine runs in this process.
    ///
    /// # Errors
    /// [`SessionError::Ring`].
    pub fn of(info: CaptureInfo, rings: Vec<OwnedFd>) -> Result<Self, SessionError> {
        let rings = rings.into_iter().map(Reader::open).collect::<Result<_, _>>()?;
        Ok(Self { info, rings, stream: None })
    }

    /// What is captured.
    #[must_use]
    pub const fn info(&self) -> &CaptureInfo {
        &self.info
    }

    /// Whether netvmd has ended the capture.
    pub(crate) fn has_ended(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        match stream.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}
