//! Rules that change one by one, and the compiling of policies, which keeps no other thread from its work.
//!
//! A single change is compiled as an overlay over the rules compiled before, which takes a millisecond, and acts when it
//! is acknowledged. Everything is compiled anew once no more changes have come for a moment.

use std::sync::Arc;
use std::time::Duration;

use netvm_api::Position;
use netvm_config::ConfigError;
use netvm_config::model::{Host, Rule};
use netvm_engine::{Compiler, Policy};
use netvm_policy::analyse::{Kind, Warning, about};
use tokio::time::sleep;

use crate::apply::ApplyError;
use crate::daemon::Daemon;

/// How long no further change must come before everything is compiled anew.
const QUIET: Duration = Duration::from_millis(200);

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
    /// Another rule has the name.
    #[error("there is a rule `{0}` already: give the new one another name, or delete that one first")]
    Taken(String),
    /// It could not be put into force.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// A rule that acts.
#[derive(Clone, Debug)]
pub struct Added {
    /// It, with its number.
    pub rule: Rule,
    /// What may not be as meant, a line each.
    pub doubts: Vec<String>,
}

/// Doubts that are told of one rule, at most.
const MOST_DOUBTS: usize = 5;

impl Daemon {
    /// Adds a rule; it acts when this returns. What is doubtful about it does not keep it from acting.
    ///
    /// # Errors
    /// [`RuleError`]; the rules are then as they were.
    pub async fn add_rule(&self, toml: &str, position: &Position) -> Result<Added, RuleError> {
        let _changing = self.changing.lock().await;
        let running = self.running().await.map_err(ApplyError::from)?;
        let rule = read_rule(&running, toml)?;
        if !rule.name.is_empty() && running.rules.iter().any(|other| other.name == rule.name) {
            return Err(RuleError::Taken(rule.name));
        }
        let place = match position {
            Position::First => 0,
            Position::Last => running.rules.len(),
            Position::Before(name) => place_of(&running, name)?,
            Position::After(name) => place_of(&running, name)? + 1,
        };
        let mut host = running.clone();
        host.rules.insert(place, rule);
        netvm_config::assign_ids(&mut host, Some(&running));
        let rules = host.rules.clone();
        self.put_rules(host).await?;
        let (rule, doubts) = blocking(move || (rules[place].clone(), doubts(&rules, place))).await;
        Ok(Added { rule, doubts })
    }

    /// Takes a rule away.
    ///
    /// # Errors
    /// [`RuleError`]; the rules are then as they were.
    pub async fn delete_rule(&self, name: &str) -> Result<Rule, RuleError> {
        let _changing = self.changing.lock().await;
        let mut host = self.running().await.map_err(ApplyError::from)?;
        let rule = host.rules.remove(place_of(&host, name)?);
        self.put_rules(host).await?;
        Ok(rule)
    }

    /// Puts a host into force that differs from the running one by its rules.
    async fn put_rules(&self, host: Host) -> Result<(), ApplyError> {
        let (compiler, before) = self.compiler().await?;
        let changed = {
            let (host, before) = (host.clone(), Arc::clone(&before));
            blocking(move || compiler.change(&host, &before)).await
        };
        match changed {
            Some(policy) => {
                self.engine.call(move |engine| engine.apply_with(&host, Arc::new(policy))).await??;
                self.rebuild.notify_one();
                Ok(())
            }
            None => self.engine_apply(&host).await,
        }
    }

    /// Makes the engine be what a host says, its rules compiled apart from the engine's thread.
    pub(crate) async fn engine_apply(&self, host: &Host) -> Result<(), ApplyError> {
        let (compiler, before) = self.compiler().await?;
        let running = self.running().await?;
        let policy = {
            let host = host.clone();
            blocking(move || compiler.policy_for(&host, &running, &before)).await
        };
        let policy = policy.map_err(netvm_engine::ApplyError::from)?;
        let host = host.clone();
        Ok(self.engine.call(move |engine| engine.apply_with(&host, policy)).await??)
    }

    /// Compiles everything anew after single changes, for as long as the daemon runs.
    pub(crate) async fn keep_compiled(&self) {
        loop {
            self.rebuild.notified().await;
            while tokio::time::timeout(QUIET, self.rebuild.notified()).await.is_ok() {}
            if let Err(error) = self.compile_anew().await {
                tracing::warn!("the rules are in force, but could not be compiled anew: {error}");
                sleep(QUIET).await;
            }
        }
    }

    async fn compile_anew(&self) -> Result<(), ApplyError> {
        let (compiler, before) = self.compiler().await?;
        let host = self.running().await?;
        let compiled = {
            let host = host.clone();
            blocking(move || compiler.compile(&host, &before)).await
        };
        let compiled = Arc::new(compiled.map_err(netvm_engine::ApplyError::from)?);
        let _changing = self.changing.lock().await;
        // What has changed meanwhile has asked for the next round.
        self.engine.call(move |engine| engine.replace_policy(&host, compiled)).await?;
        Ok(())
    }

    async fn compiler(&self) -> Result<(Compiler, Arc<Policy>), ApplyError> {
        Ok(self.engine.call(|engine| (engine.compiler(), engine.policy())).await?)
    }
}

/// Runs what takes long apart from the runtime's threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
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
