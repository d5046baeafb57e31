//! The thread that owns the engine. Others send it closures; what the engine has to do by itself is done in between.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use netvm_config::model::EngineConfig;
use netvm_engine::{Engine, Notice, StartError};
use tokio::sync::oneshot;

/// How often the engine is served while something is on its way.
const BRISK: Duration = Duration::from_millis(2);
/// How often otherwise.
const CALM: Duration = Duration::from_millis(20);

enum Order {
    Do(Box<dyn FnOnce(&mut Engine) + Send>),
    /// Close everything and end.
    End,
}

/// The engine's thread has ended, by a panic; its message is on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine's thread has ended: restart netvmd, and report what it wrote before")]
pub struct EngineGone;

/// Reaches the engine from other threads.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    orders: Sender<Order>,
}

impl EngineHandle {
    /// Runs `order` on the engine's thread and brings back what it returns.
    ///
    /// # Errors
    /// [`EngineGone`] when the thread is no more.
    pub async fn call<T, F>(&self, order: F) -> Result<T, EngineGone>
    where
        T: Send + 'static,
        F: FnOnce(&mut Engine) -> T + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let order = Box::new(move |engine: &mut Engine| {
            // Nobody waits any more: the caller was cancelled.
            let _ = done.send(order(engine));
        });
        self.orders.send(Order::Do(order)).map_err(|_| EngineGone)?;
        outcome.await.map_err(|_| EngineGone)
    }

    /// As [`EngineHandle::call`], for orders whose outcome nobody waits for.
    pub fn tell(&self, order: impl FnOnce(&mut Engine) + Send + 'static) {
        // When the engine is gone there is nothing left to do for it.
        let _ = self.orders.send(Order::Do(Box::new(order)));
    }

    /// Closes the engine. Later calls find it gone.
    pub fn end(&self) {
        // If it has ended already, that is what was wanted.
        let _ = self.orders.send(Order::End);
    }
}

/// Why the engine did not come up.
#[derive(Debug, thiserror::Error)]
pub enum EngineThreadError {
    /// No thread.
    #[error("the engine's thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The engine said no.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The thread ended at once.
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// The thread itself.
#[derive(Debug)]
pub struct EngineThread {
    thread: JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

impl EngineThread {
    /// Starts the engine on a thread of its own. `on_notice` is called there with each notice, and with the engine, which
    /// knows the names that belong to numbers.
    ///
    /// # Errors
    /// [`EngineThreadError`], in the engine's words.
    pub async fn start(
        config: EngineConfig,
        pci: bool,
        mut on_notice: impl FnMut(&Engine, Notice) + Send + 'static,
    ) -> Result<(EngineHandle, Self), EngineThreadError> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let (started, outcome) = oneshot::channel();
        let (alive, ended) = oneshot::channel::<()>();
        let main = move || {
            let _alive = alive;
            match Engine::start(&config, pci) {
                Ok(engine) => {
                    // The caller waits for it.
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
        Ok((EngineHandle { orders }, Self { thread, ended }))
    }

    /// Returns when the thread has ended.
    pub async fn ended(&mut self) {
        // An error is what says so: nothing is ever sent.
        let _ = (&mut self.ended).await;
    }

    /// Waits until the engine is closed, which [`EngineHandle::end`] asks for.
    pub fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("{EngineGone}");
        }
    }
}

fn serve(mut engine: Engine, inbox: &mpsc::Receiver<Order>, on_notice: &mut impl FnMut(&Engine, Notice)) {
    loop {
        let pause = if engine.is_settling() { BRISK } else { CALM };
        match inbox.recv_timeout(pause) {
            Ok(Order::Do(order)) => order(&mut engine),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        engine.service();
        let notices: Vec<Notice> = engine.notices().collect();
        notices.into_iter().for_each(|notice| on_notice(&engine, notice));
    }
}
