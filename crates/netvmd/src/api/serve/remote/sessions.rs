// SPDX-License-Identifier: Apache-2.0
//! Sessions of users who have logged in with a password. In: the users of the configuration, the file of passwords, and
//! the tokens of cookies. Out: who has a token, and what the user may do. A session ends when its user logs out, is
//! removed, or gets another role or password, and after a time.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netvm_api::Role;
use netvm_model::RemoteUser;
use netvm_passwords::Passwords;
use tokio::sync::watch;

use super::super::guard::random_hex;
use crate::runtime::lock;

/// How long a session lasts.
pub(super) const LIFETIME: Duration = Duration::from_hours(12);
/// How long it lasts without a request. The page sends one each second.
const IDLE: Duration = Duration::from_mins(30);
/// Sessions of a user; the oldest one ends.
const MAX_OF_USER: usize = 16;

/// The users, and their sessions.
#[derive(Debug, Default)]
pub(in crate::api) struct Sessions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    users: Vec<RemoteUser>,
    passwords: Arc<Passwords>,
    /// By token.
    sessions: HashMap<String, Session>,
}

#[derive(Debug)]
struct Session {
    name: String,
    role: Role,
    /// The hash of the password that the user has given.
    hash: String,
    began: Instant,
    used: Instant,
    /// Dropped with the session, which ends replies that last.
    end: watch::Sender<()>,
}

/// A user with a session.
#[derive(Debug)]
pub(in crate::api) struct User {
    pub(super) name: String,
    pub(super) role: Role,
    /// Has an error when the session has ended.
    pub(super) end: watch::Receiver<()>,
}

impl Sessions {
    /// Follows the configuration and the file of passwords.
    pub(super) fn follow(&self, users: &[RemoteUser], passwords: &Arc<Passwords>) {
        let mut table = lock(&self.0);
        table.users = users.to_vec();
        table.passwords = Arc::clone(passwords);
        table.sweep(Instant::now());
    }

    /// The role of a user who may log in, and the passwords to check.
    pub(super) fn admitted(&self, name: &str) -> (Option<Role>, Arc<Passwords>) {
        let table = lock(&self.0);
        (table.role_of(name), Arc::clone(&table.passwords))
    }

    /// Begins a session of a user who has given the password with this hash. `None`: it is not the user's any more.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub(super) fn begin(&self, name: &str, hash: &str) -> io::Result<Option<(String, Role)>> {
        let (token, now) = (random_hex()?, Instant::now());
        let mut table = lock(&self.0);
        let role = table.role_of(name).filter(|_| table.passwords.hash_of(name) == Some(hash));
        let Some(role) = role else { return Ok(None) };
        table.sweep(now);
        table.make_room(name);
        let (end, name, hash) = (watch::Sender::new(()), name.to_owned(), hash.to_owned());
        table.sessions.insert(token.clone(), Session { name, role, hash, began: now, used: now, end });
        Ok(Some((token, role)))
    }

    /// Who has a token.
    pub(super) fn find(&self, token: &str) -> Option<User> {
        let (mut table, now) = (lock(&self.0), Instant::now());
        table.sweep(now);
        let session = table.sessions.get_mut(token)?;
        session.used = now;
        Some(User { name: session.name.clone(), role: session.role, end: session.end.subscribe() })
    }

    /// Ends a session; gives its user.
    pub(super) fn end(&self, token: &str) -> Option<String> {
        lock(&self.0).sessions.remove(token).map(|session| session.name)
    }
}

impl Table {
    fn role_of(&self, name: &str) -> Option<Role> {
        self.users.iter().find(|user| user.name == name).map(|user| user.role)
    }

    /// Ends sessions that are over.
    fn sweep(&mut self, now: Instant) {
        let sessions = std::mem::take(&mut self.sessions);
        let lasts = |session: &Session| {
            let is_used = session.end.receiver_count() > 0 || now < session.used + IDLE;
            is_used
                && now < session.began + LIFETIME
                && self.role_of(&session.name) == Some(session.role)
                && self.passwords.hash_of(&session.name) == Some(&session.hash)
        };
        self.sessions = sessions.into_iter().filter(|(_, session)| lasts(session)).collect();
    }

    /// Ends the oldest session of a user who has many.
    fn make_room(&mut self, name: &str) {
        let of_user = || self.sessions.iter().filter(|(_, session)| session.name == name);
        if of_user().count() >= MAX_OF_USER
            && let Some(oldest) = of_user().min_by_key(|(_, session)| session.began)
        {
            let token = oldest.0.clone();
            self.sessions.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "correct horse battery";

    fn user(name: &str, role: Role) -> RemoteUser {
        RemoteUser { name: name.to_owned(), role }
    }

    /// Passwords of alice and bob.
    fn passwords() -> Arc<Passwords> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwords");
        ["alice", "bob"].iter().for_each(|name| netvm_passwords::set(&path, name, PASSWORD).unwrap());
        Arc::new(Passwords::read(&path).unwrap())
    }

    #[test]
    fn a_session_is_of_its_user_until_something_changes() {
        let (sessions, known) = (Sessions::default(), passwords());
        let users = [user("alice", Role::View), user("bob", Role::Admin), user("eve", Role::View)];
        sessions.follow(&users, &known);
        let hash = known.hash_of("alice").unwrap();
        let begin = || sessions.begin("alice", hash).unwrap().unwrap().0;
        let token = begin();
        assert_eq!(token.len(), 64);
        let found = sessions.find(&token).unwrap();
        assert_eq!((found.name.as_str(), found.role), ("alice", Role::View));
        assert!(!found.end.has_changed().unwrap());
        assert!(sessions.find("").is_none() && sessions.find(&token[1..]).is_none());
        // Not with another's hash, nor for somebody who has no password or is not admitted.
        for (name, hash) in [("bob", hash), ("eve", hash), ("carol", hash), ("alice", "")] {
            assert!(sessions.begin(name, hash).unwrap().is_none(), "{name}");
        }
        // The same again changes nothing.
        sessions.follow(&users, &known);
        assert!(sessions.find(&token).is_some());
        sessions.follow(&[user("alice", Role::Operate)], &known);
        assert!(sessions.find(&token).is_none() && found.end.has_changed().is_err());
        let token = begin();
        sessions.follow(&[user("alice", Role::Operate)], &passwords());
        assert!(sessions.find(&token).is_none(), "another password, or salt");
        sessions.follow(&users, &known);
        let token = begin();
        assert_eq!(sessions.end(&token).as_deref(), Some("alice"));
        assert!(sessions.find(&token).is_none() && sessions.end(&token).is_none());
    }

    #[test]
    fn sessions_end_with_time_and_number() {
        let (sessions, known) = (Sessions::default(), passwords());
        sessions.follow(&[user("alice", Role::View), user("bob", Role::View)], &known);
        let begin = |name| sessions.begin(name, known.hash_of(name).unwrap()).unwrap().unwrap().0;
        let of_bob = begin("bob");
        let first = begin("alice");
        let others: Vec<_> = (0..MAX_OF_USER).map(|_| begin("alice")).collect();
        assert!(sessions.find(&first).is_none(), "the oldest one has ended");
        assert!(others.iter().chain([&of_bob]).all(|token| sessions.find(token).is_some()));
        let held = sessions.find(&of_bob).unwrap();
        let sweep = |after| lock(&sessions.0).sweep(Instant::now() + after);
        sweep(IDLE);
        assert!(others.iter().all(|token| sessions.find(token).is_none()));
        assert!(sessions.find(&of_bob).is_some(), "a reply lasts");
        sweep(LIFETIME);
        assert!(sessions.find(&of_bob).is_none() && held.end.has_changed().is_err());
    }
}
