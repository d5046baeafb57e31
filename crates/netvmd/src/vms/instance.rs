// SPDX-License-Identifier: Apache-2.0
//! The engine's instance of an NF in a VM: admitted before the VM starts, ready when it has booted, removed after its
//! end.

mod messages;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

use netvm_attach::Fds;
use netvm_engine::{AdmitError, Engine, InstanceId, NotifyMode, ReadyMessage};
use netvm_region::MapError;
use netvm_vm::{GuestMemory, ServedMemory};
use tokio::time::sleep;

use super::spec::VmNfSpec;
use crate::engine_thread::{EngineGone, EngineHandle};
use messages::GuestMessages;

/// Poll interval for a guest's ready message.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Poll interval for an eviction.
const EVICTION_INTERVAL: Duration = Duration::from_secs(1);
/// The exit reason of a VM whose NF was evicted.
pub(super) const EVICTED: &str = "its NF or another one of its trust group damaged the group's memory";

/// The engine does not admit an NF.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstanceError {
    #[error("the engine refused it: {0}")]
    Refused(#[from] AdmitError),
    #[error("cannot pass its memory to QEMU: {0} (raise the limit of open files)")]
    Memory(#[from] io::Error),
    #[error(transparent)]
    Table(#[from] MapError),
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// An instance in the engine. Dropping it reclaims its buffers and ids: drop it after the VM has ended.
#[derive(Debug)]
pub(super) struct Instance<M> {
    pub(super) id: InstanceId,
    /// The memory for QEMU.
    pub(super) memory: M,
    engine: EngineHandle,
    /// Once it is ready.
    messages: OnceLock<GuestMessages>,
}

/// Builds QEMU's memory from the engine's descriptors.
type Make<M> = fn(&Fds<BorrowedFd<'_>>, NotifyMode) -> io::Result<M>;

impl Instance<GuestMemory> {
    /// Admits an NF whose QEMU netvmd starts.
    pub(super) async fn admit(engine: &EngineHandle, nf: &VmNfSpec) -> Result<Self, InstanceError> {
        Self::let_in(engine, nf, |_, _| Ok(()), GuestMemory::new).await
    }
}

impl Instance<ServedMemory> {
    /// Admits an NF whose QEMU is started externally and maps all its memory writable.
    pub(super) async fn admit_served(engine: &EngineHandle, nf: &VmNfSpec) -> Result<Self, InstanceError> {
        Self::let_in(engine, nf, Engine::give_own_table, ServedMemory::new).await
    }
}

impl<M: Send + 'static> Instance<M> {
    async fn let_in(
        engine: &EngineHandle,
        nf: &VmNfSpec,
        table: fn(&mut Engine, InstanceId) -> Result<(), MapError>,
        make: Make<M>,
    ) -> Result<Self, InstanceError> {
        let (role, threads, notify) = (nf.role.clone(), nf.threads, nf.notify);
        let admitted = engine.call(move |engine| {
            let id = engine.admit_guest(&role, threads, false, notify)?;
            let memory = table(engine, id).map_err(InstanceError::Table).and_then(|()| {
                match engine.descriptors(id) {
                    Some(fds) => make(&fds, notify),
                    // Cannot happen: the instance was admitted just now.
                    None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
                }
                .map_err(InstanceError::Memory)
            });
            match memory {
                Ok(memory) => Ok((id, memory)),
                Err(error) => {
                    engine.departed(id);
                    Err(error)
                }
            }
        });
        let (id, memory) = admitted.await??;
        Ok(Self { id, memory, engine: engine.clone(), messages: OnceLock::new() })
    }

    /// Waits for the guest's ready message.
    pub(super) async fn ready_message(&self) -> Result<ReadyMessage, EngineGone> {
        let id = self.id;
        loop {
            if let Some(ready_message) = self.engine.call(move |engine| engine.guest_ready(id)).await? {
                if let Some(messages) = GuestMessages::begin(&self.engine, id).await? {
                    let _ = self.messages.set(messages);
                }
                return Ok(ready_message);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the engine has evicted it.
    pub(super) async fn evicted(&self) {
        let id = self.id;
        let is_there = move |engine: &mut Engine| engine.descriptors(id).is_some();
        while let Ok(true) = self.engine.call(is_there).await {
            sleep(EVICTION_INTERVAL).await;
        }
    }

    /// Names the QEMU in which the NF runs.
    pub(super) fn runs_in(&self, pid: u32) {
        let id = self.id;
        self.engine.send(move |engine| engine.set_process(id, pid));
    }

    /// Asks the NF to forward the packets that it holds and to end.
    pub(super) fn dismiss(&self) {
        let id = self.id;
        self.engine.send(move |engine| engine.dismiss(id));
    }
}

impl<M> Drop for Instance<M> {
    fn drop(&mut self) {
        let id = self.id;
        self.engine.send(move |engine| engine.departed(id));
    }
}

/// Waits for the ready message of a VM's NF; forever if there is none to wait for.
pub(super) async fn ready_message<M: Send + 'static>(
    instance: Option<&Instance<M>>,
) -> Result<ReadyMessage, EngineGone> {
    match instance {
        Some(instance) => instance.ready_message().await,
        // No NF, or its message has arrived.
        None => std::future::pending().await,
    }
}

/// Waits until the engine has evicted the VM's NF; forever for a VM without an NF.
pub(super) async fn evicted<M: Send + 'static>(instance: Option<&Instance<M>>) {
    match instance {
        Some(instance) => instance.evicted().await,
        None => std::future::pending().await,
    }
}
