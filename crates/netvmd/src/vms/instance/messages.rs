// SPDX-License-Identifier: Apache-2.0
//! Messages of an NF in a VM, which go over the mailbox in its control memory. A VM cannot tell that it has sent one,
//! so netvmd looks now and then.

use std::sync::Arc;
use std::time::Duration;

use netvm_engine::InstanceId;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::engine_thread::{EngineGone, EngineHandle};
use crate::messages::{Address, GuestMailbox, Member, Transport};

/// How often netvmd looks for messages.
const INTERVAL: Duration = Duration::from_millis(50);

/// Passes messages on until it is dropped.
#[derive(Debug)]
pub(super) struct GuestMessages {
    engine: EngineHandle,
    id: InstanceId,
    task: JoinHandle<()>,
}

impl GuestMessages {
    /// Begins, for an NF that is ready; `None` if it has ended.
    pub(super) async fn begin(engine: &EngineHandle, id: InstanceId) -> Result<Option<Self>, EngineGone> {
        let found = engine.call(move |engine| {
            let nf = engine.instances().into_iter().find(|nf| nf.id == id)?;
            let nf = engine.host().nf(nf.role)?;
            let address = Address { role: nf.role.clone(), number: nf.id, group: nf.group };
            Some((address, GuestMailbox::of(engine.guest_control(id)?)?))
        });
        let Some((address, mailbox)) = found.await? else { return Ok(None) };
        let mailbox = Arc::new(mailbox);
        engine.messages().join(id, Member::new(address, Transport::Mailbox(Arc::clone(&mailbox))));
        let task = tokio::spawn(follow(engine.clone(), id, mailbox));
        Ok(Some(Self { engine: engine.clone(), id, task }))
    }
}

impl Drop for GuestMessages {
    fn drop(&mut self) {
        self.task.abort();
        self.engine.messages().leave(self.id);
    }
}

/// Passes on what an NF sends.
async fn follow(engine: EngineHandle, id: InstanceId, mailbox: Arc<GuestMailbox>) {
    loop {
        sleep(INTERVAL).await;
        loop {
            match mailbox.receive() {
                Ok(Some(request)) => sleep(engine.messages().take(id, request)).await,
                Ok(None) => break,
                // Also what it sends later is read from then on.
                Err(error) => {
                    tracing::debug!("instance {id}: a message is lost: {error}");
                    break;
                }
            }
        }
    }
}
