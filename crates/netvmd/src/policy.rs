//! Rules that change one by one, and the compiling of policies, which keeps no other thread from its work.
//!
//! A single change is compiled as an overlay over the rules compiled before, which takes a few milliseconds at most, and
//! acts when it is acknowledged. Everything is compiled anew in the background, beside further changes; what has changed
//! meanwhile is carried over as an overlay over the new rules. An overlay holds a thousand changes: a change that finds it
//! full waits for the compilation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netvm_api::Position;
use netvm_config::ConfigError;
use netvm_config::model::{Host, MAX_RULES, Rule, RuleId};
use netvm_engine::{Compiler, Engine, Policy};
use netvm_policy::analyse::{Kind, Warning, about};
use tokio::sync::{MutexGuard, Notify};
use tokio::time::{Instant, sleep, timeout};

use crate::apart::{blocking, in_background};
use crate::apply::ApplyError;
use crate::daemon::Daemon;
use crate::engine_thread::EngineGone;

/// How long no further change must come before everything is compiled anew.
const QUIET: Duration = Duration::from_millis(200);
/// How long changes that keep coming put that off.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many changes do not put it off any longer.
const MANY: usize = 128;

/// What single changes of rules have to tell each other.
#[derive(Debug, Default)]
pub(crate) struct RuleChanges {
    /// There is something to be compiled anew.
    some: Notify,
    /// There is no time to be lost.
    many: Notify,
    /// A compilation has ended, well or not.
    compiled: Notify,
    /// The number of the rule that was added last.
    last: AtomicU32,
}

/// Why a rule was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// It is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// More or fewer than one.
    #[error(
        "{0} rules were given: give the lines of one, such as `match = {{ protocol = \"tcp\" }}` and `drop = true`"
    )]
    NotOne(usize),
    /// No rule of that name or number.
    #[error("there is no rule `{0}`: `netvm policy show` lists them")]
    Unknown(String),
    /// No more rules.
    #[error("there are {MAX_RULES} rules already, and no more are possible: delete others first")]
    TooMany,
    /// Another rule has the name.
    #[error("there is a rule `{0}` already: give the new one another name, or delete that one first")]
    Taken(String),
    /// It could not be put into force.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// The engine's thread is gone.
impl From<EngineGone> for RuleError {
    fn from(gone: EngineGone) -> Self {
        Self::Apply(gone.into())
    }
}

/// A rule that acts, or no longer does.
#[derive(Clone, Debug)]
pub struct Changed {
    /// It, with its number.
    pub rule: Rule,
    /// What may not be as meant, a line each.
    pub doubts: Vec<String>,
}

/// Doubts that are told of one rule, at most.
const MOST_DOUBTS: usize = 5;

/// A change that has been put into force, and a change that has to wait.
enum Put {
    Acts,
    /// The overlay is full.
    Full,
}

/// What runs, and what makes its policies.
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

impl Daemon {
    /// Adds a rule; it acts when this returns. What is doubtful about it does not keep it from acting.
    ///
    /// # Errors
    /// [`RuleError`]; the rules are then as they were.
    pub async fn add_rule(&self, toml: &str, position: &Position) -> Result<Changed, RuleError> {
        let add = |running: &Host| {
            let mut rule = read_rule(running, toml)?;
            if !rule.name.is_empty() && running.rules.iter().any(|other| other.name == rule.name) {
                return Err(RuleError::Taken(rule.name.clone()));
            }
            let place = match position {
                Position::First => 0,
                Position::Last => running.rules.len(),
                Position::Before(name) => place_of(running, name)?,
                Position::After(name) => place_of(running, name)? + 1,
            };
            let last = RuleId(self.rules.last.load(Ordering::Relaxed));
            rule.id = netvm_config::new_rule_id(&running.rules, last).ok_or(RuleError::TooMany)?;
            self.rules.last.store(rule.id.0, Ordering::Relaxed);
            let mut host = running.clone();
            host.rules.insert(place, rule);
            Ok((host, place))
        };
        let (host, place, waited) = self.change_rules(add).await?;
        let (rule, mut doubts) =
            blocking(move || (host.rules[place].clone(), doubts(&host.rules, place))).await;
        doubts.extend(waited.map(late));
        Ok(Changed { rule, doubts })
    }

    /// Takes a rule away.
    ///
    /// # Errors
    /// [`RuleError`]; the rules are then as they were.
    pub async fn delete_rule(&self, name: &str) -> Result<Changed, RuleError> {
        let delete = |running: &Host| {
            let place = place_of(running, name)?;
            let mut host = running.clone();
            let rule = host.rules.remove(place);
            Ok((host, rule))
        };
        let (_, rule, waited) = self.change_rules(delete).await?;
        Ok(Changed { rule, doubts: waited.map(late).into_iter().collect() })
    }

    /// Puts a host into force that differs from the running one by its rules, as `change` makes it, with what that tells
    /// besides; and how long it had to wait until as much had been compiled as is needed for that.
    async fn change_rules<T>(
        &self,
        change: impl Fn(&Host) -> Result<(Host, T), RuleError>,
    ) -> Result<(Arc<Host>, T, Option<Duration>), RuleError> {
        let mut waited = None;
        loop {
            let changing = self.changing.lock().await;
            let running = self.engine.call(Running::of).await?;
            let (host, told) = change(&running.host)?;
            let host = Arc::new(host);
            match self.put_rules(&host, running, waited.is_none()).await? {
                Put::Acts => return Ok((host, told, waited)),
                Put::Full => {
                    let started = Instant::now();
                    self.compiled_next(changing).await;
                    waited = Some(started.elapsed());
                }
            }
        }
    }

    /// Waits until a compilation has ended that made room for more changes, and lets others change something meanwhile.
    async fn compiled_next(&self, changing: MutexGuard<'_, ()>) {
        let compiled = self.rules.compiled.notified();
        tokio::pin!(compiled);
        compiled.as_mut().enable();
        drop(changing);
        self.rules.many.notify_one();
        self.rules.some.notify_one();
        compiled.await;
    }

    async fn put_rules(&self, host: &Arc<Host>, running: Running, may_wait: bool) -> Result<Put, ApplyError> {
        let changes = running.policy.changes();
        let changed = {
            let host = Arc::clone(host);
            blocking(move || running.compiler.change(&host, &running.policy)).await
        };
        match changed {
            Some(policy) => {
                if policy.changes() >= MANY {
                    self.rules.many.notify_one();
                }
                let host = Arc::clone(host);
                self.engine.call(move |engine| engine.apply_with(host, Arc::new(policy))).await??;
                self.rules.some.notify_one();
                Ok(Put::Acts)
            }
            None if may_wait && changes > 0 => Ok(Put::Full),
            // Too much for an overlay over what has just been compiled, too.
            None => self.engine_apply(host).await.map(|()| Put::Acts),
        }
    }

    /// Makes the engine be what a host says, its rules compiled apart from the engine's thread.
    pub(crate) async fn engine_apply(&self, host: &Host) -> Result<(), ApplyError> {
        let Running { host: before, compiler, policy } = self.engine.call(Running::of).await?;
        let host = Arc::new(host.clone());
        let policy = {
            let host = Arc::clone(&host);
            blocking(move || compiler.policy_for(&host, &before, &policy)).await
        };
        let policy = policy.map_err(netvm_engine::ApplyError::from)?;
        Ok(self.engine.call(move |engine| engine.apply_with(host, policy)).await??)
    }

    /// Compiles everything anew after single changes, for as long as the daemon runs.
    pub(crate) async fn keep_compiled(&self) {
        loop {
            self.rules.some.notified().await;
            let first = Instant::now();
            loop {
                tokio::select! {
                    () = self.rules.many.notified() => break,
                    more = timeout(QUIET, self.rules.some.notified()) => {
                        if more.is_err() || first.elapsed() > PATIENCE {
                            break;
                        }
                    }
                }
            }
            let outcome = self.compile_anew().await;
            self.rules.compiled.notify_waiters();
            if let Err(error) = outcome {
                tracing::warn!("the rules are in force, but could not be compiled anew: {error}");
                sleep(QUIET).await;
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
        // A configuration that was applied meanwhile has been compiled as a whole.
        if policy.changes() == 0 {
            return Ok(());
        }
        let carried = {
            let host = Arc::clone(&host);
            blocking(move || compiler.carried_over(&host, &compiled, &policy)).await
        };
        // What is over what has been compiled is for the next round.
        if carried.as_ref().is_none_or(|policy| policy.changes() > 0) {
            self.rules.some.notify_one();
        }
        if let Some(policy) = carried {
            self.engine.call(move |engine| engine.replace_policy(&host, Arc::new(policy))).await?;
        }
        Ok(())
    }
}

/// Why the rules were not compiled anew.
#[derive(Debug, thiserror::Error)]
enum CompileError {
    #[error(transparent)]
    Policy(#[from] netvm_engine::PolicyError),
    #[error("there is no thread for it: {0}")]
    Thread(#[from] std::io::Error),
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// Of a change that had to wait, in words.
fn late(waited: Duration) -> String {
    format!(
        "it waited for {:.1} s: more rules had changed at once than can act before all are compiled anew",
        waited.as_secs_f64()
    )
}

/// A rule's place in the order, by its name or else its number.
fn place_of(host: &Host, name: &str) -> Result<usize, RuleError> {
    let by_name = host.rules.iter().position(|rule| !rule.name.is_empty() && rule.name == name);
    let by_number = || {
        let number: u32 = name.parse().ok()?;
        host.rules.iter().position(|rule| rule.id.0 == number)
    };
    by_name.or_else(by_number).ok_or_else(|| RuleError::Unknown(name.to_owned()))
}

/// What the rule at a place and others make of each other, in words.
fn doubts(rules: &[Rule], place: usize) -> Vec<String> {
    let named = |place: usize| match rules.get(place) {
        Some(rule) if !rule.name.is_empty() => format!("rule {} ({})", rule.id, rule.name),
        Some(rule) => format!("rule {}", rule.id),
        None => "a rule".to_owned(),
    };
    let told = |warning: &Warning| {
        let rule = named(warning.rule);
        let other = warning.other.map_or_else(String::new, named);
        match warning.kind {
            Kind::Shadowed | Kind::ShadowedTogether => {
                format!("{rule} never matches: {other} before it takes all of its packets")
            }
            Kind::Duplicate => format!("{rule} never matches: {other} before it says the same"),
            Kind::Contradiction => {
                format!(
                    "{rule} never matches: {other} before it is for the same packets and decides otherwise"
                )
            }
            Kind::Overlap => {
                format!("{rule} and {other} before it decide differently on packets that fit both")
            }
            Kind::Impossible(why) => format!("no packet can match {rule}: {why}"),
        }
    };
    let warnings = about(rules, place);
    let mut doubts: Vec<String> = warnings.iter().take(MOST_DOUBTS).map(told).collect();
    if warnings.len() > MOST_DOUBTS {
        doubts.push(format!("and {} more of the kind", warnings.len() - MOST_DOUBTS));
    }
    doubts
}

/// Reads one rule, in which the names of the running host mean what they mean there.
fn read_rule(running: &Host, toml: &str) -> Result<Rule, RuleError> {
    let rules = netvm_config::parse_rules("rule", toml, running)?;
    <[Rule; 1]>::try_from(rules).map(|[rule]| rule).map_err(|rules| RuleError::NotOne(rules.len()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_keeps_others_from_matching_is_told_of_by_name() {
        let text = "[[rule]]\nname = \"all\"\ndrop = true\n[[rule]]\nallow = true\n\
                    [[rule]]\nmatch = { protocol = \"tcp\" }\nallow = true\n";
        let rules = netvm_config::parse_rules("rules", text, &Host::default()).unwrap();
        let told = doubts(&rules, 0);
        let first = format!(
            "rule {} never matches: rule {} (all) before it is for the same packets and decides otherwise",
            rules[1].id, rules[0].id
        );
        let second = format!(
            "rule {} never matches: rule {} (all) before it takes all of its packets",
            rules[2].id, rules[0].id
        );
        assert_eq!(told, [first, second]);
        let many: Vec<Rule> = std::iter::repeat_n(rules[1].clone(), 9).collect();
        let told = doubts(&many, 0);
        assert_eq!((told.len(), told[5].as_str()), (6, "and 3 more of the kind"));
    }
}
