// SPDX-License-Identifier: Apache-2.0
//! The thread that owns the engine: runs closures that other threads send, and in between the engine's periodic work.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use netvm_engine::{Engine, InstanceId, Notice, StartError};
use netvm_model::EngineConfig;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};

use crate::events::Events;
use crate::messages::Messages;

/// Service interval while the engine settles a change.
const BUSY_INTERVAL: Duration = Duration::from_millis(2);
/// Service interval otherwise.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// Reports of failed NFs that are queued for a slow supervisor.
const FAILED: usize = 256;

/// Why the engine treats an NF as failed although its process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NfFault {
    /// It makes no progress although packets wait for it. It may recover.
    Hung,
    /// It was evicted: an NF of its trust group has damaged the group's memory.
    Evicted,
}

/// Reports of NFs that fail.
#[derive(Debug)]
pub(crate) struct FailedNfs(broadcast::Receiver<(InstanceId, NfFault)>);

impl FailedNfs {
    /// Waits until the engine reports this instance as failed.
    pub(crate) async fn wait_for(&mut self, id: InstanceId) -> NfFault {
        loop {
            match self.0.recv().await {
                Ok((failed, fault)) if failed == id => return fault,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                // The engine has ended, which ends the session.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

enum EngineCommand {
    Run(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Close the engine and end.
    End,
}

/// The engine's thread has ended by a panic, whose message is on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine's thread has panicked: restart netvmd, and report its last output")]
pub struct EngineGone;

/// Handle of the engine for other threads.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: Sender<EngineCommand>,
    failed: broadcast::Sender<(InstanceId, NfFault)>,
    events: Events,
    messages: Messages,
}

impl EngineHandle {
    /// Runs `work` on the engine's thread and returns its result.
    ///
    /// # Errors
    /// [`EngineGone`] if the thread has ended.
    pub async fn call<T, F>(&self, work: F) -> Result<T, EngineGone>
    where
        T: Send + 'static,
        F: FnOnce(&mut Engine) -> T + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        // The caller may have been cancelled.
        self.send(move |engine| drop(done.send(work(engine))));
        outcome.await.map_err(|_| EngineGone)
    }

    /// As [`EngineHandle::call`], for threads outside of the runtime.
    ///
    /// # Errors
    /// [`EngineGone`] if the thread has ended.
    pub(crate) fn call_blocking<T, F>(&self, work: F) -> Result<T, EngineGone>
    where
        T: Send + 'static,
        F: FnOnce(&mut Engine) -> T + Send + 'static,
    {
        let (done, outcome) = std::sync::mpsc::sync_channel(1);
        self.send(move |engine| {
            // The caller waits for the result, so this cannot fail.
            let _ = done.send(work(engine));
        });
        outcome.recv().map_err(|_| EngineGone)
    }

    /// Runs `work` on the engine's thread without waiting; does nothing if the thread has ended.
    pub fn send(&self, work: impl FnOnce(&mut Engine) + Send + 'static) {
        let _ = self.commands.send(EngineCommand::Run(Box::new(work)));
    }

    /// Reports of NFs that fail from now on.
    pub(crate) fn failed(&self) -> FailedNfs {
        FailedNfs(self.failed.subscribe())
    }

    /// The messages of the attached NFs.
    pub(crate) const fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The events, to which the engine's notices are added.
    pub(crate) const fn events(&self) -> &Events {
        &self.events
    }
}

/// The engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineThreadError {
    /// The thread cannot be created.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The engine refused to start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The thread panicked.
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// Proof that the engine has closed its ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortsClosed(());

/// The engine's thread. Dropping it closes the engine, so that later calls fail, and waits until it has closed.
#[derive(Debug)]
pub struct EngineThread {
    handle: EngineHandle,
    /// `None` once it has closed.
    thread: Option<JoinHandle<()>>,
    ended: oneshot::Receiver<()>,
}

impl EngineThread {
    /// Starts the engine on a new thread, which calls `on_notice` with each notice and the engine, for its names.
    ///
    /// # Errors
    /// [`EngineThreadError`].
    pub(crate) async fn start(
        config: EngineConfig,
        pci: bool,
        events: Events,
        mut on_notice: impl FnMut(&Engine, Notice) + Send + 'static,
    ) -> Result<Self, EngineThreadError> {
        let (commands, inbox) = mpsc::channel::<EngineCommand>();
        let (started, outcome) = oneshot::channel();
        let (alive, ended) = oneshot::channel::<()>();
        let failed = broadcast::Sender::new(FAILED);
        let reports = failed.clone();
        let mut on_notice = move |engine: &Engine, notice: Notice| {
            let fault = match notice {
                Notice::Hung { instance, .. } => Some((instance, NfFault::Hung)),
                Notice::Evicted { instance, .. } => Some((instance, NfFault::Evicted)),
                _ => None,
            };
            // Fails if no supervisor listens: then no NF runs.
            let _ = fault.map(|fault| reports.send(fault));
            on_notice(engine, notice);
        };
        let main = move || {
            let _alive = alive;
            match Engine::start(&config, pci) {
                Ok(engine) => {
                    // The caller waits for this.
                    let _ = started.send(Ok(()));
                    serve(engine, &inbox, &mut on_notice);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        };
        let thread = std::thread::Builder::new().name("netvm-engine".to_owned()).spawn(main)?;
        outcome.await.map_err(|_| EngineGone)??;
        Ok(Self {
            handle: EngineHandle { commands, failed, events, messages: Messages::default() },
            thread: Some(thread),
            ended,
        })
    }

    /// The handle for other threads.
    pub(crate) const fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Waits for the thread's end.
    pub async fn ended(&mut self) {
        // The sender sends nothing; the thread drops it when it ends.
        let _ = (&mut self.ended).await;
    }

    /// Closes the engine, as dropping it does.
    pub(crate) fn stop(self) -> PortsClosed {
        drop(self);
        PortsClosed(())
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.handle.commands.send(EngineCommand::End);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("{EngineGone}");
        }
    }
}

fn serve(
    mut engine: Engine,
    inbox: &mpsc::Receiver<EngineCommand>,
    on_notice: &mut impl FnMut(&Engine, Notice),
) {
    loop {
        let pause = if engine.is_settling() { BUSY_INTERVAL } else { IDLE_INTERVAL };
        match inbox.recv_timeout(pause) {
            Ok(EngineCommand::Run(work)) => work(&mut engine),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(EngineCommand::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        engine.service();
        let notices: Vec<Notice> = engine.notices().collect();
        notices.into_iter().for_each(|notice| on_notice(&engine, notice));
    }
}
