//! An NF in a VM, as the engine sees it: let in before the VM starts, heard when it has booted, gone when the VM has.

use std::io;
use std::time::Duration;

use netvm_engine::{AdmitError, Greeting, InstanceId};
use netvm_vm::GuestMemory;
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
    Gone(#[from] EngineGone),
}

/// A place in the engine. Dropping it takes its cells and its numbers back: to be done when the VM has gone.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) id: InstanceId,
    /// What QEMU is to inherit.
    pub(super) memory: GuestMemory,
    engine: EngineHandle,
}

impl Instance {
    pub(super) async fn admit(engine: &EngineHandle, nf: &NfRecipe) -> Result<Self, InstanceError> {
        let (role, threads, notify) = (nf.role.clone(), nf.threads, nf.notify);
        let admitted = engine.call(move |engine| {
            let id = engine.admit_guest(&role, threads, false, notify)?;
            let memory = match engine.descriptors(id) {
                Some(fds) => GuestMemory::new(&fds, notify),
                // It was let in a moment ago.
                None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
            };
            match memory {
                Ok(memory) => Ok((id, memory)),
                Err(error) => {
                    engine.departed(id);
                    Err(InstanceError::Memory(error))
                }
            }
        });
        let (id, memory) = admitted.await??;
        Ok(Self { id, memory, engine: engine.clone() })
    }

    /// Waits until the guest says what it is.
    pub(super) async fn greeting(&self) -> Result<Greeting, EngineGone> {
        let id = self.id;
        loop {
            if let Some(greeting) = self.engine.call(move |engine| engine.hear_guest(id)).await? {
                return Ok(greeting);
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

impl Drop for Instance {
    fn drop(&mut self) {
        let id = self.id;
        self.engine.tell(move |engine| engine.departed(id));
    }
}
