//! The callback API: a type with a method that is asked about every packet.

use std::thread;

use netvm_region::{MAX_COUNTERS, clock};

use crate::attach::{Attachment, Error, Options, attach};
use crate::endpoint::{Burst, Endpoint};
use crate::packet::{Packet, PortId, RoleId, Verdict};

/// How often [`NetworkFunction::tick`] is called at least.
const TICK_MICROS: u64 = 100_000;

/// A network function. Each thread has one of its own, so that nothing in it is shared or locked.
pub trait NetworkFunction {
    /// Looks at one packet, changes it if it likes, and says what is to become of it.
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict;

    /// Looks at a whole burst; by default asks [`NetworkFunction::packet`] about each. For functions that gain from
    /// seeing many packets at once (batched look-ups, prefetching).
    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        burst.for_each(|packet| self.packet(packet));
    }

    /// Called when ports, roles or chains have changed: names may have other numbers now.
    fn changed(&mut self, _context: &ThreadContext<'_>) {}

    /// Called about ten times a second, with packets or without: for timeouts.
    fn tick(&mut self) {}

    /// Asked after each burst and about ten times a second: whether what this thread has said of whole flows so far
    /// ([`Verdict::DropFlow`], [`Verdict::SkipFlow`]) is to hold no more, as after a change of rules. To be said once.
    #[inline]
    fn withdraws(&mut self) -> bool {
        false
    }

    /// Writes the function's own counters, in the order in which [`Options::counters`] names them.
    fn report(&self, _counters: &mut [u64; MAX_COUNTERS]) {}
}

/// What a thread of an NF knows of its surroundings.
#[derive(Debug)]
pub struct ThreadContext<'a> {
    endpoint: &'a Endpoint,
}

impl<'a> ThreadContext<'a> {
    pub(crate) const fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint }
    }

    /// Which thread, from 0.
    #[must_use]
    pub const fn thread(&self) -> u16 {
        self.endpoint.thread()
    }

    /// The number of the port with this name.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<PortId> {
        self.endpoint.port(name)
    }

    /// The number of the role with this name.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<RoleId> {
        self.endpoint.role(name)
    }
}

/// Attaches, and runs a function in each thread until the engine says to stop or goes away.
///
/// # Errors
/// As for [`attach`]; [`Error::Panicked`] when a thread's function panicked.
pub fn run<F, M>(options: &Options, make: M) -> Result<(), Error>
where
    F: NetworkFunction,
    M: Fn(&ThreadContext<'_>) -> F + Sync,
{
    run_attached(attach(options)?, make)
}

/// As [`run`], for an NF that has attached already.
///
/// # Errors
/// [`Error::Thread`] when a thread cannot be started, [`Error::Panicked`] when a thread's function panicked.
pub fn run_attached<F, M>(attachment: Attachment, make: M) -> Result<(), Error>
where
    F: NetworkFunction,
    M: Fn(&ThreadContext<'_>) -> F + Sync,
{
    let make = &make;
    let mut endpoints = attachment.into_endpoints();
    if endpoints.len() == 1 {
        if let Some(mut endpoint) = endpoints.pop() {
            serve(&mut endpoint, make);
        }
        return Ok(());
    }
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for mut endpoint in endpoints {
            let number = endpoint.thread();
            let builder = thread::Builder::new().name(format!("nf-{number}"));
            let handle = builder.spawn_scoped(scope, move || serve(&mut endpoint, make));
            threads.push((number, handle.map_err(|source| Error::Thread { thread: number, source })?));
        }
        for (thread, handle) in threads {
            handle.join().map_err(|_| Error::Panicked { thread })?;
        }
        Ok(())
    })
}

fn serve<F: NetworkFunction>(endpoint: &mut Endpoint, make: &impl Fn(&ThreadContext<'_>) -> F) {
    let mut function = make(&ThreadContext::new(endpoint));
    let mut epoch = endpoint.epoch();
    let tick = clock::cycles_in_micros(TICK_MICROS);
    let mut next_tick = 0;
    let mut own = [0; MAX_COUNTERS];
    let mut tend = |function: &mut F, endpoint: &mut Endpoint, idle: bool| {
        let now = clock::cycles();
        let due = now >= next_tick;
        if due {
            next_tick = now + tick;
            function.tick();
        }
        if function.withdraws() {
            endpoint.withdraw();
        }
        // Before it sleeps, so that what is seen then is exact; and ten times a second.
        if due || idle {
            function.report(&mut own);
            endpoint.report(&own);
        }
    };
    loop {
        match endpoint.receive_with(|endpoint| tend(&mut function, endpoint, true)) {
            Some(mut burst) => {
                if burst.epoch() != epoch {
                    epoch = burst.epoch();
                    function.changed(&burst.context());
                }
                function.burst(&mut burst);
            }
            None => break,
        }
        tend(&mut function, endpoint, false);
    }
    function.report(&mut own);
    endpoint.report(&own);
}
