//! An NF in a VM, as the engine sees it: let in before the VM starts, event when it has booted, gone when the VM has.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netvm_attach::Fds;
use netvm_engine::{AdmitError, Engine, InstanceId, Notify, ReadyMessage};
use netvm_region::MapError;
use netvm_vm::{GuestMemory, ServedMemory};
use tokio::time::sleep;

use super::recipe::NfRecipe;
use crate::engine_thread::{EngineGone, EngineHandle};

/// How often the engine looks whether a guest has said that it is ready.
const LOOK: Duration = Duration::from_millis(10);

/// Why the engine has no place for an NF.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstanceError {
    #[error("the engine does not let it in: {0}")]
    Refused(#[from] AdmitError),
    #[error("its memory cannot be handed to QEMU: {0} (raise the limit of open files)")]
    Memory(#[from] io::Error),
    #[error(transparent)]
    Table(#[from] MapError),
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// A place in the engine. Dropping it takes its buffers and its numbers back: to be done when the VM has gone.
#[derive(Debug)]
pub(super) struct Instance<M> {
    pub(super) id: InstanceId,
    /// What QEMU is to have.
    pub(super) memory: M,
    engine: EngineHandle,
}

/// Makes of the engine's descriptors what QEMU is to have.
type Make<M> = fn(&Fds<BorrowedFd<'_>>, Notify) -> io::Result<M>;

impl Instance<GuestMemory> {
    /// For a QEMU that netvmd starts.
    pub(super) async fn admit(engine: &EngineHandle, nf: &NfRecipe) -> Result<Self, InstanceError> {
        Self::let_in(engine, nf, |_, _| Ok(()), GuestMemory::new).await
    }
}

impl Instance<ServedMemory> {
    /// For a QEMU that others start, which maps everything for writing.
    pub(super) async fn admit_served(engine: &EngineHandle, nf: &NfRecipe) -> Result<Self, InstanceError> {
        Self::let_in(engine, nf, Engine::give_own_table, ServedMemory::new).await
    }
}

impl<M: Send + 'static> Instance<M> {
    async fn let_in(
        engine: &EngineHandle,
        nf: &NfRecipe,
        table: fn(&mut Engine, InstanceId) -> Result<(), MapError>,
        make: Make<M>,
    ) -> Result<Self, InstanceError> {
        let (role, threads, notify) = (nf.role.clone(), nf.threads, nf.notify);
        let admitted = engine.call(move |engine| {
            let id = engine.admit_guest(&role, threads, false, notify)?;
            let memory = table(engine, id).map_err(InstanceError::Table).and_then(|()| {
                match engine.descriptors(id) {
                    Some(fds) => make(&fds, notify),
                    // It was let in a moment ago.
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
        Ok(Self { id, memory, engine: engine.clone() })
    }

    /// Waits until the guest says what it is.
    pub(super) async fn ready_message(&self) -> Result<ReadyMessage, EngineGone> {
        let id = self.id;
        loop {
            if let Some(ready_message) = self.engine.call(move |engine| engine.hear_guest(id)).await? {
                return Ok(ready_message);
            }
            sleep(LOOK).await;
        }
    }

    /// Asks it to send on what it has and to end.
    pub(super) fn dismiss(&self) {
        let id = self.id;
        self.engine.tell(move |engine| engine.dismiss(id));
    }
}

impl<M> Drop for Instance<M> {
    fn drop(&mut self) {
        let id = self.id;
        self.engine.tell(move |engine| engine.departed(id));
    }
}
