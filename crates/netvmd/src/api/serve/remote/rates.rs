// SPDX-License-Identifier: Apache-2.0
//! How often clients from other machines may connect, and send requests. In: an address, or a name. Out: whether to
//! serve it now.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::super::super::Failure;
use super::super::caller::{Caller, Identity};
use super::super::slots::Peer;
use crate::events::{Bucket, Rate};
use crate::runtime::lock;

/// Connections of an address. `netvm` makes one for each request.
const CONNECTIONS: Rate = Rate { burst: 200, interval: Duration::from_millis(20) };
/// Requests of a client.
const REQUESTS: Rate = Rate { burst: 200, interval: Duration::from_millis(20) };
/// Attempts of an address to log in.
const LOGINS: Rate = Rate { burst: 10, interval: Duration::from_secs(6) };
/// Attempts to log in as one user, from all addresses together: some 14,000 a day.
const LOGINS_OF_USER: Rate = Rate { burst: 30, interval: Duration::from_secs(6) };
/// Addresses or names that are limited each by itself. Those beyond share what is left of one.
const MAX_LIMITED: usize = 4096;

/// The rate of each, and of those beyond.
type Limited<K> = HashMap<Option<K>, Bucket>;

/// The rates of all clients.
#[derive(Debug, Default)]
pub(in crate::api) struct Rates {
    connections: Mutex<Limited<IpAddr>>,
    requests: Mutex<Limited<String>>,
    logins: Mutex<Limited<IpAddr>>,
    logins_of_user: Mutex<Limited<String>>,
}

impl Rates {
    /// Whether an address may connect now.
    pub(super) fn admit_connection(&self, from: IpAddr) -> bool {
        admit(&self.connections, from, CONNECTIONS, Instant::now())
    }

    /// Whether an address may try to log in now, as a user who is there or as somebody else.
    pub(super) fn admit_login(&self, from: Peer, user: Option<&str>) -> bool {
        let now = Instant::now();
        let Peer::Address(from) = from else { return false };
        let is_admitted = admit(&self.logins, from, LOGINS, now);
        is_admitted
            && user.is_none_or(|name| admit(&self.logins_of_user, name.to_owned(), LOGINS_OF_USER, now))
    }

    /// Whether a client may send a request now.
    fn admit_request(&self, name: &str) -> bool {
        admit(&self.requests, name.to_owned(), REQUESTS, Instant::now())
    }
}

/// Whether one more is admitted now.
fn admit<K: Hash + Eq>(limited: &Mutex<Limited<K>>, who: K, rate: Rate, now: Instant) -> bool {
    let mut limited = lock(limited);
    let mut who = Some(who);
    if limited.len() >= MAX_LIMITED && !limited.contains_key(&who) {
        limited.retain(|_, bucket| !bucket.is_full(now));
        if limited.len() >= MAX_LIMITED {
            who = None;
        }
    }
    limited.entry(who).or_insert_with(|| Bucket::new(rate, now)).allows(now).is_some()
}

/// Refuses requests of a client that sends too many.
pub(in crate::api) async fn limit_requests(
    State(rates): State<Arc<Rates>>,
    request: Request,
    next: Next,
) -> Response {
    let caller = request.extensions().get::<Arc<Caller>>();
    let is_admitted = caller.is_some_and(|caller| match &caller.identity {
        Identity::Certificate { name, .. } => rates.admit_request(name),
        Identity::User { name } => rates.admit_request(&format!("user {name}")),
        // By address, without the port.
        Identity::Anonymous => {
            let address = caller.from.rsplit_once(':').map_or(&*caller.from, |(address, _)| address);
            rates.admit_request(&format!("address {address}"))
        }
        _ => true,
    });
    if is_admitted {
        return next.run(request).await;
    }
    let message = format!(
        "too many requests: a client may send {} at once, and one in {} ms on average: try again in a second",
        REQUESTS.burst,
        REQUESTS.interval.as_millis()
    );
    ([(header::RETRY_AFTER, "1")], Failure::new(StatusCode::TOO_MANY_REQUESTS, message)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_rate_and_those_beyond_share_one() {
        let (limited, start) = (Mutex::<Limited<usize>>::default(), Instant::now());
        let admitted =
            |who, count: u32, at| (0..count).filter(|_| admit(&limited, who, CONNECTIONS, at)).count();
        assert_eq!([admitted(0, 300, start), admitted(1, 1, start)], [200, 1]);
        assert_eq!(admitted(0, 300, start + Duration::from_secs(1)), 50);
        let all: usize = (2..MAX_LIMITED).map(|who| admitted(who, 1, start)).sum();
        assert_eq!(all, MAX_LIMITED - 2);
        let beyond: usize = (0..1000).map(|n| admitted(MAX_LIMITED + n, 1, start)).sum();
        assert_eq!(beyond, 200);
        // Those that were idle make room.
        assert_eq!(admitted(MAX_LIMITED + 1000, 300, start + Duration::from_secs(10)), 200);
        assert!(lock(&limited).len() <= MAX_LIMITED + 1);
    }
}
