//! Whether a VM boots: its NF attaches, or a driver answers at one of its ports, within the time that it has. One that does
//! not is left as it is, for people to look at, and says so.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::console::Console;
use super::recipe::VmRecipe;
use crate::engine_thread::EngineHandle;

/// How often to look whether one has come up after all.
const LOOK: Duration = Duration::from_secs(1);

/// A VM that boots.
#[derive(Debug)]
pub(super) struct Boot {
    /// When to look next; `None`: it has booted, or nobody can tell.
    due: Option<Instant>,
    limit: Duration,
    is_late: bool,
    /// What it says; `None`: on a console that is not netvmd's.
    console: Option<Console>,
}

/// What there is to say of a VM that boots.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BootNews {
    /// It has had its time.
    Late(String),
    /// It has come up after all.
    Up,
}

impl Boot {
    /// Begins now.
    pub(super) fn begin(limit: Duration, console: Option<Console>) -> Self {
        Self { due: Some(Instant::now() + limit), limit, is_late: false, console }
    }

    /// Of one that has booted long since.
    pub(super) const fn over() -> Self {
        Self { due: None, limit: Duration::ZERO, is_late: false, console: None }
    }

    /// Returns when it is time to look.
    pub(super) async fn due(&self) {
        at(self.due).await;
    }

    /// It is up; whether that is news to those who were report that it is late.
    pub(super) const fn finish(&mut self) -> bool {
        self.due = None;
        std::mem::replace(&mut self.is_late, false)
    }

    /// Looks whether it is up. An NF says so itself.
    pub(super) async fn look(&mut self, engine: &EngineHandle, recipe: &VmRecipe) -> Option<BootNews> {
        if recipe.nf.is_none() && has_driver(engine, recipe).await {
            return self.finish().then_some(BootNews::Up);
        }
        self.due = Some(Instant::now() + LOOK);
        if std::mem::replace(&mut self.is_late, true) {
            return None;
        }
        let (seconds, name) = (self.limit.as_secs(), &recipe.machine.name);
        let what = match &recipe.nf {
            Some(nf) => format!("its NF {} has not attached within {seconds} s", nf.role),
            None => format!("no driver of its has come to its ports within {seconds} s"),
        };
        let (said, remedy) = match &self.console {
            Some(console) => (console.said(), format!("look with `netvm vm console {name}`")),
            None => ("its console is where it was started".to_owned(), "look there".to_owned()),
        };
        Some(BootNews::Late(format!(
            "{what}; {said}; {remedy}, correct its image, or raise `boot_timeout` if it is only slow"
        )))
    }
}

/// Returns when it is that time; never without one.
pub(super) async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn has_driver(engine: &EngineHandle, recipe: &VmRecipe) -> bool {
    let names: Vec<String> = recipe.machine.cards.iter().map(|card| card.name.clone()).collect();
    let is_up = engine.call(move |engine| {
        let of = |name: &String| engine.host().port_named(name).map(|port| port.id);
        let ids: Vec<_> = names.iter().filter_map(of).collect();
        engine.ports().iter().any(|port| ids.contains(&port.id) && port.link == Some(true))
    });
    is_up.await.unwrap_or(false)
}
