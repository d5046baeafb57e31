// SPDX-License-Identifier: Apache-2.0
//! Changes of single rules, and compilation of policies off the runtime's and the engine's threads.
//!
//! A change is compiled as an overlay on the compiled rules, in a few milliseconds at most, and is in force when
//! acknowledged. A background thread then compiles all rules; changes made in the meantime move to an overlay on the
//! new rules. An overlay holds a thousand changes: a change that finds it full waits for the compilation.

mod warnings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netvm_api::{EventKind, Position};
use netvm_config::ConfigError;
use netvm_engine::{Compiler, Engine, Policy};
use netvm_model::{Host, MAX_RULES, Rule, RuleId};
use tokio::sync::{MutexGuard, Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::ChangeLock;
use super::conditions::{Conditions, Measured};
use super::configuration::ApplyError;
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::runtime::{blocking, in_background};
use warnings::warnings;

/// Compile all rules this long after the last change,
const COMPILE_DELAY: Duration = Duration::from_millis(200);
/// but at most this long after the first,
const MAX_COMPILE_DELAY: Duration = Duration::from_secs(1);
/// or at once after so many.
const URGENT: usize = 128;

/// A rule was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The rule is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The text does not have exactly one rule.
    #[error(
        "expected one rule, found {0}: give the lines of one, such as `match = {{ protocol = \"tcp\" }}` and `drop = true`"
    )]
    NotOne(usize),
    /// No rule has this name or number.
    #[error("no rule `{0}`: `netvm policy show` lists the rules")]
    Unknown(String),
    /// The table is full.
    #[error("limit of {MAX_RULES} rules reached: delete others first")]
    TooMany,
    /// Another rule has this name.
    #[error("rule `{0}` exists already: choose another name, or delete that rule first")]
    Taken(String),
    /// The engine refused it.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The engine has ended.
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// A rule that was added or deleted.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The rule, with its number.
    pub rule: Rule,
    /// Possible mistakes, a line each.
    pub warnings: Vec<String>,
}

/// The running configuration, its policy, and the compiler for both.
struct Running {
    host: Arc<Host>,
    compiler: Compiler,
    policy: Arc<Policy>,
}

impl Running {
    fn of(engine: &mut Engine) -> Self {
        Self { host: engine.shared_host(), compiler: engine.compiler(), policy: engine.policy() }
    }
}

/// The rules that the engine runs, and the background compiler.
#[derive(Debug)]
pub(crate) struct Rules {
    engine: EngineHandle,
    changing: ChangeLock,
    /// Rules have changed since the last compilation.
    changed: Notify,
    /// Compile at once: the overlay is filling up.
    urgent: Notify,
    /// A compilation has ended, successful or not.
    compiled: Notify,
    /// Id of the last added rule.
    last_id: AtomicU32,
    conditions: Conditions,
}

impl Rules {
    pub(super) fn new(engine: EngineHandle, changing: ChangeLock) -> Self {
        let (changed, urgent, compiled) = (Notify::new(), Notify::new(), Notify::new());
        let (last_id, conditions) = (AtomicU32::new(0), Conditions::default());
        Self { engine, changing, changed, urgent, compiled, last_id, conditions }
    }

    /// Adds a rule; it is in force when this returns, whatever its warnings.
    ///
    /// # Errors
    /// [`RuleError`]; the rules are unchanged.
    pub(crate) async fn add(&self, toml: &str, position: &Position) -> Result<Changed, RuleError> {
        let add = |running: &Host| {
            let mut rule = read_rule(running, toml)?;
            if !rule.name.is_empty() && running.rules.iter().any(|other| other.name == rule.name) {
                return Err(RuleError::Taken(rule.name.clone()));
            }
            let index = match position {
                Position::First => 0,
                Position::Last => running.rules.len(),
                Position::Before(name) => index_of(running, name)?,
                Position::After(name) => index_of(running, name)? + 1,
            };
            let last = RuleId(self.last_id.load(Ordering::Relaxed));
            rule.id = netvm_model::new_rule_id(&running.rules, last).ok_or(RuleError::TooMany)?;
            self.last_id.store(rule.id.0, Ordering::Relaxed);
            let mut host = running.clone();
            host.rules.insert(index, rule);
            self.conditions.settle(&mut host);
            Ok((host, index))
        };
        let (host, index, waited) = self.change(add).await?;
        let (rule, mut warnings) =
            blocking(move || (host.rules[index].clone(), warnings(&host, index))).await;
        warnings.extend(waited.map(delayed));
        Ok(Changed { rule, warnings })
    }

    /// Deletes a rule.
    ///
    /// # Errors
    /// [`RuleError`]; the rules are unchanged.
    pub(crate) async fn delete(&self, name: &str) -> Result<Changed, RuleError> {
        let delete = |running: &Host| {
            let index = index_of(running, name)?;
            let mut host = running.clone();
            let rule = host.rules.remove(index);
            Ok((host, rule))
        };
        let (_, rule, waited) = self.change(delete).await?;
        Ok(Changed { rule, warnings: waited.map(delayed).into_iter().collect() })
    }

    /// Applies the rules that `change` makes of the running ones. Returns the new configuration, the second value of
    /// `change`, and how long the change waited for a compilation, if it did.
    async fn change<T>(
        &self,
        change: impl Fn(&Host) -> Result<(Host, T), RuleError>,
    ) -> Result<(Arc<Host>, T, Option<Duration>), RuleError> {
        let mut waited = None;
        loop {
            let changing = self.changing.lock().await;
            let running = self.engine.call(Running::of).await?;
            let (host, value) = change(&running.host)?;
            let host = Arc::new(host);
            if self.put(&host, running, waited.is_none()).await? {
                return Ok((host, value, waited));
            }
            let started = Instant::now();
            self.wait_compiled(changing).await;
            waited = Some(started.elapsed());
        }
    }

    /// Waits for a compilation to make room in the overlay; other changes may run in the meantime.
    async fn wait_compiled(&self, changing: MutexGuard<'_, ()>) {
        let compiled = self.compiled.notified();
        tokio::pin!(compiled);
        compiled.as_mut().enable();
        drop(changing);
        self.urgent.notify_one();
        self.changed.notify_one();
        compiled.await;
    }

    /// Puts rules in force; `false`: the overlay is full, and the caller can wait.
    async fn put(&self, host: &Arc<Host>, running: Running, may_wait: bool) -> Result<bool, ApplyError> {
        let changes = running.policy.changes();
        let changed = {
            let host = Arc::clone(host);
            blocking(move || running.compiler.change(&host, &running.policy)).await
        };
        match changed {
            Some(policy) => {
                if policy.changes() >= URGENT {
                    self.urgent.notify_one();
                }
                let host = Arc::clone(host);
                self.engine.call(move |engine| engine.apply_with(host, Arc::new(policy))).await??;
                self.changed.notify_one();
                Ok(true)
            }
            None if may_wait && changes > 0 => Ok(false),
            // Too large even for an empty overlay.
            None => self.apply(host).await.map(|()| true),
        }
    }

    /// Applies a configuration to the engine, with its rules compiled off the engine's thread.
    pub(super) async fn apply(&self, host: &Host) -> Result<(), ApplyError> {
        let (host, policy) = self.compile(host).await?;
        Ok(self.engine.call(move |engine| engine.apply_tolerant(host, policy)).await??)
    }

    /// As [`Rules::apply`], for a change of few ports and rules: as an overlay on the compiled rules, if that is
    /// possible.
    pub(super) async fn apply_ports(&self, host: &Host) -> Result<(), ApplyError> {
        let Running { compiler, policy, .. } = self.engine.call(Running::of).await?;
        let mut changed = host.clone();
        self.conditions.settle(&mut changed);
        let changed = Arc::new(changed);
        let overlay = {
            let changed = Arc::clone(&changed);
            blocking(move || compiler.change(&changed, &policy)).await
        };
        let Some(overlay) = overlay else { return self.apply(host).await };
        if overlay.changes() >= URGENT {
            self.urgent.notify_one();
        }
        self.engine.call(move |engine| engine.apply_tolerant(changed, Arc::new(overlay))).await??;
        self.changed.notify_one();
        Ok(())
    }

    /// As [`Rules::apply`], for the first configuration: ports that cannot be opened stay closed.
    pub(super) async fn apply_first(&self, host: &Host) -> Result<(), ApplyError> {
        let (host, policy) = self.compile(host).await?;
        Ok(self.engine.call(move |engine| engine.apply_first(host, policy)).await??)
    }

    async fn compile(&self, host: &Host) -> Result<(Arc<Host>, Arc<Policy>), ApplyError> {
        let Running { host: before, compiler, policy } = self.engine.call(Running::of).await?;
        let mut host = host.clone();
        self.conditions.settle(&mut host);
        let host = Arc::new(host);
        let policy = {
            let host = Arc::clone(&host);
            blocking(move || compiler.policy_for(&host, &before, &policy)).await
        };
        Ok((host, policy.map_err(netvm_engine::ApplyError::from)?))
    }

    /// Puts rules into force and out of it, as the clock and the loads of roles say, as long as these are measured.
    pub(crate) async fn adapt(&self, mut measured: watch::Receiver<Measured>) {
        while measured.changed().await.is_ok() {
            let now = measured.borrow_and_update().clone();
            if let Err(error) = self.follow_conditions(&now).await {
                tracing::warn!("rules that apply now could not be put into force: {error}");
            }
        }
    }

    async fn follow_conditions(&self, measured: &Measured) -> Result<(), RuleError> {
        let Measured { host, loads } = measured;
        self.conditions.follow(host, loads, Instant::now());
        if !self.conditions.differ(host) {
            return Ok(());
        }
        let settle = |running: &Host| {
            let mut host = running.clone();
            let changed = self.conditions.settle(&mut host);
            Ok((host, changed))
        };
        let (host, changed, _) = self.change(settle).await?;
        for rule in changed {
            let what = if rule.is_active() { "applies now" } else { "no longer applies" };
            let message = format!("rule {} {what}: {}", rule.id, rule.named(&*host));
            self.engine.events().push(EventKind::RuleSwitched, &rule.name, message);
        }
        Ok(())
    }

    /// Compiles all rules after changes of single rules, as long as the daemon runs.
    pub(crate) async fn keep_compiled(&self) {
        loop {
            self.changed.notified().await;
            let first = Instant::now();
            loop {
                tokio::select! {
                    () = self.urgent.notified() => break,
                    more = timeout(COMPILE_DELAY, self.changed.notified()) => {
                        if more.is_err() || first.elapsed() > MAX_COMPILE_DELAY {
                            break;
                        }
                    }
                }
            }
            let outcome = self.compile_anew().await;
            self.compiled.notify_waiters();
            if let Err(error) = outcome {
                tracing::warn!("the rules are in force, but compiling them failed: {error}");
                sleep(COMPILE_DELAY).await;
            }
        }
    }

    async fn compile_anew(&self) -> Result<(), CompileError> {
        let Running { host, compiler, policy } = self.engine.call(Running::of).await?;
        if policy.changes() == 0 {
            return Ok(());
        }
        let compiled = in_background("netvm-compile", move || compiler.compile(&host, &policy)).await??;
        let _changing = self.changing.lock().await;
        let Running { host, compiler, policy } = self.engine.call(Running::of).await?;
        // A configuration applied in the meantime was compiled in full.
        if policy.changes() == 0 {
            return Ok(());
        }
        let carried = {
            let host = Arc::clone(&host);
            blocking(move || compiler.carried_over(&host, &compiled, &policy)).await
        };
        // Changes that remain in the overlay are for the next round.
        if carried.as_ref().is_none_or(|policy| policy.changes() > 0) {
            self.changed.notify_one();
        }
        if let Some(policy) = carried {
            self.engine.call(move |engine| engine.replace_policy(&host, Arc::new(policy))).await?;
        }
        Ok(())
    }
}

/// Compiling the rules failed.
#[derive(Debug, thiserror::Error)]
enum CompileError {
    #[error(transparent)]
    Policy(#[from] netvm_engine::PolicyError),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// Warning about a change that waited.
fn delayed(waited: Duration) -> String {
    format!(
        "the change waited {:.1} s for a compilation: too many rules changed at once",
        waited.as_secs_f64()
    )
}

/// A rule's index, by its name or else its number.
fn index_of(host: &Host, name: &str) -> Result<usize, RuleError> {
    let by_name = host.rules.iter().position(|rule| !rule.name.is_empty() && rule.name == name);
    let by_number = || {
        let number: u32 = name.parse().ok()?;
        host.rules.iter().position(|rule| rule.id.0 == number)
    };
    by_name.or_else(by_number).ok_or_else(|| RuleError::Unknown(name.to_owned()))
}

/// Parses one rule; its names refer to the running configuration.
fn read_rule(running: &Host, toml: &str) -> Result<Rule, RuleError> {
    let rules = netvm_config::parse_rules("rule", toml, running)?;
    <[Rule; 1]>::try_from(rules).map(|[rule]| rule).map_err(|rules| RuleError::NotOne(rules.len()))
}
