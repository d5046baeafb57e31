// SPDX-License-Identifier: Apache-2.0
//! Frees large objects on a separate thread: compiled rules, whose memory DPDK clears, and long rule lists.

use std::any::Any;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// The thread that frees.
#[derive(Debug)]
pub(crate) struct Reaper {
    /// `None` while it is being dropped, which ends the thread.
    inbox: Option<Sender<Box<dyn Any + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (inbox, things) = mpsc::channel::<Box<dyn Any + Send>>();
        let main = move || things.into_iter().for_each(drop);
        let thread = std::thread::Builder::new().name("netvm-reaper".to_owned()).spawn(main)?;
        Ok(Self { inbox: Some(inbox), thread: Some(thread) })
    }

    /// Drops `thing` on the thread.
    pub(crate) fn free(&self, thing: impl Any + Send) {
        if let Some(inbox) = &self.inbox {
            // Without the thread, this drops it here.
            let _ = inbox.send(Box::new(thing));
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // It panics only if a drop does, and a panic prints its message.
            let _ = thread.join();
        }
    }
}
