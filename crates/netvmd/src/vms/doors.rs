//! Where a QEMU that others start knocks: the sockets of its VM, on which netvmd listens.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use netvm_vm::{NfDevices, NfSocket};
use tokio::net::{UnixListener, UnixStream};

use super::folder::{Folder, FolderError, QMP};
use crate::supervisor::Account;

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Of the control channel.
    Qmp,
    /// Of an NF's device.
    Nf(NfSocket),
}

/// The sockets of one VM.
#[derive(Debug)]
pub(super) struct Doors(Vec<(Door, UnixListener)>);

impl Doors {
    /// Listens for QEMUs of this user. An NF's devices come with `devices`.
    pub(super) fn open(
        folder: &Folder,
        devices: Option<&NfDevices>,
        user: Option<Account>,
    ) -> Result<Self, FolderError> {
        let at = |path: std::path::PathBuf| move |source| FolderError { path, source };
        let sockets = devices.map(NfDevices::sockets).unwrap_or_default();
        let doors = sockets.into_iter().map(|socket| (Door::Nf(socket), socket.file()));
        let doors = doors.chain([(Door::Qmp, QMP.to_owned())]);
        let listen = |(door, file): (Door, String)| {
            let listener = folder.listen_for(&file, user)?;
            Ok((door, UnixListener::from_std(listener).map_err(at(folder.path().join(file)))?))
        };
        doors.map(listen).collect::<Result<_, _>>().map(Self)
    }

    /// Returns when somebody connects. Nobody is heard at the doors of memory that is nobody's yet.
    pub(super) async fn next(&self, is_taken: bool) -> (Door, io::Result<UnixStream>) {
        poll_fn(|context| {
            for (door, listener) in &self.0 {
                let is_open = is_taken || matches!(door, Door::Qmp | Door::Nf(NfSocket::Control));
                if is_open && let Poll::Ready(accepted) = listener.poll_accept(context) {
                    return Poll::Ready((*door, accepted.map(|(stream, _)| stream)));
                }
            }
            Poll::Pending
        })
        .await
    }
}
