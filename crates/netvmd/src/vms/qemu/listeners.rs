// SPDX-License-Identifier: Apache-2.0
//! The sockets on which netvmd listens for an externally started QEMU.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use netvm_vm::{NfDevices, NfSocket};
use tokio::net::{UnixListener, UnixStream};

use crate::account::Account;
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::vms::qemu::folder::{Folder, FolderError, QMP};
use crate::vms::spec::VmNfSpec;

/// netvmd cannot listen for a VM.
#[derive(Debug, thiserror::Error)]
pub(in crate::vms) enum ListenersError {
    #[error(transparent)]
    Gone(#[from] EngineGone),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("role {0} was removed")]
    Role(String),
}

/// A socket of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vms) enum VmSocket {
    /// The control channel.
    Qmp,
    /// A device of an NF.
    Nf(NfSocket),
}

/// The sockets of a VM.
#[derive(Debug)]
pub(in crate::vms) struct Listeners(Vec<(VmSocket, UnixListener)>);

impl Listeners {
    /// Listens for QEMUs of `user`. `devices`: those of an NF.
    pub(in crate::vms) fn open(
        folder: &Folder,
        devices: Option<&NfDevices>,
        user: Option<Account>,
    ) -> Result<Self, FolderError> {
        let at = |path: std::path::PathBuf| move |source| FolderError { path, source };
        let sockets = devices.map(NfDevices::sockets).unwrap_or_default();
        let listeners = sockets.into_iter().map(|socket| (VmSocket::Nf(socket), socket.file()));
        let listeners = listeners.chain([(VmSocket::Qmp, QMP.to_owned())]);
        let listen = |(socket, file): (VmSocket, String)| {
            let listener = folder.listen_for(&file, user)?;
            Ok((socket, UnixListener::from_std(listener).map_err(at(folder.path().join(file)))?))
        };
        listeners.map(listen).collect::<Result<_, _>>().map(Self)
    }

    /// Accepts the next connection. Before an NF's slot is taken (`is_taken`), accepts only on the control sockets.
    pub(in crate::vms) async fn next(&self, is_taken: bool) -> (VmSocket, io::Result<UnixStream>) {
        poll_fn(|context| {
            for (socket, listener) in &self.0 {
                let is_open = is_taken || matches!(socket, VmSocket::Qmp | VmSocket::Nf(NfSocket::Control));
                if is_open && let Poll::Ready(accepted) = listener.poll_accept(context) {
                    return Poll::Ready((*socket, accepted.map(|(stream, _)| stream)));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The devices of a VM for this NF, with their sockets in `folder`; `None` if the role was removed.
pub(in crate::vms) async fn devices(
    engine: &EngineHandle,
    folder: &Folder,
    nf: &VmNfSpec,
) -> Result<Option<NfDevices>, EngineGone> {
    let (role, notify) = (nf.role.clone(), nf.notify);
    let shape = engine.call(move |engine| engine.guest_shape(&role)).await?;
    Ok(shape.map(|shape| NfDevices {
        folder: folder.path().to_owned(),
        regions: shape.regions as u8,
        vectors: shape.vectors,
        notify,
    }))
}
