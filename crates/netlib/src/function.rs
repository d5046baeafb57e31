// SPDX-License-Identifier: Apache-2.0
//! The callback API: netlib calls a method of the NF's type on every packet, and runs the loop.

use std::thread;

use netvm_attach::messages::Message;
use netvm_clock as clock;
use netvm_region::MAX_COUNTERS;

use crate::attach::{Attachment, Error, Options, attach};
use crate::endpoint::{Burst, Endpoint, Outbox, ThreadContext};
use crate::packet::{Packet, Verdict};
use crate::shared::Stop;
use crate::shared::messages::Outgoing;

/// Interval of [`NetworkFunction::tick`].
const TICK_MICROS: u64 = 100_000;

/// A network function. Each thread has its own value, which needs no locks.
pub trait NetworkFunction {
    /// Reads and may change one packet, and returns its verdict. An NF overrides this or [`NetworkFunction::burst`]; by
    /// default, each packet goes to the next hop.
    fn packet(&mut self, _packet: &mut Packet<'_>) -> Verdict {
        Verdict::Next
    }

    /// Processes a whole burst; by default calls [`NetworkFunction::packet`] on each packet. Override it to batch
    /// look-ups or to prefetch, or to make, hold and send packets: [`Burst::for_each_with`].
    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        burst.for_each(|packet| self.packet(packet));
    }

    /// Called when ports, roles or chains have changed, so that names may have other numbers.
    fn changed(&mut self, _context: &ThreadContext<'_>) {}

    /// Called about ten times a second, with packets or without, for timeouts.
    fn tick(&mut self) {}

    /// Called after [`NetworkFunction::tick`], to send packets that are due.
    fn send_due(&mut self, _outbox: &mut Outbox<'_>) {}

    /// Called once before the thread ends, to send packets that it holds.
    fn finish(&mut self, _outbox: &mut Outbox<'_>) {}

    /// Called after each burst and about ten times a second. Return `true` once to withdraw the per-flow verdicts
    /// ([`Verdict::DropFlow`], [`Verdict::SkipFlow`], [`Verdict::SteerFlow`]) that this thread has given so far, for
    /// example after a change of rules.
    #[inline]
    fn withdraws(&mut self) -> bool {
        false
    }

    /// Called with each message of another NF or of netvmd, in the first thread, within about 100 ms, if
    /// [`Options::messages`] is set.
    fn message(&mut self, _message: &Message) {}

    /// Called in each thread about ten times a second, and again after each message that it returns: a message to send.
    /// One that cannot be sent now is lost.
    #[inline]
    fn sends(&mut self) -> Option<Outgoing> {
        None
    }

    /// Writes the NF's own counters, in the order of [`Options::counters`].
    fn report(&self, _counters: &mut [u64; MAX_COUNTERS]) {}
}

/// Attaches, and runs a function in each thread until the engine asks the NF to stop or is gone.
///
/// # Errors
/// As for [`attach`] and [`run_attached`].
pub fn run<F, M>(options: &Options, make: M) -> Result<(), Error>
where
    F: NetworkFunction,
    M: Fn(&ThreadContext<'_>) -> F + Sync,
{
    run_attached(attach(options)?, make)
}

/// As [`run`], for an NF that is attached already.
///
/// # Errors
/// [`Error::Thread`] if a thread cannot be started, [`Error::Panicked`] if a thread's function panicked; the other
/// threads end then too.
///
/// # Panics
/// If the function of the only thread panics.
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
            let handle = builder.spawn_scoped(scope, move || {
                let _stop = StopOnPanic(endpoint.stop());
                serve(&mut endpoint, make);
            });
            threads.push((number, handle.map_err(|source| Error::Thread { thread: number, source })?));
        }
        for (thread, handle) in threads {
            handle.join().map_err(|_| Error::Panicked { thread })?;
        }
        Ok(())
    })
}

/// Ends all threads of the NF when one panics: its rings would fill up otherwise.
struct StopOnPanic(Stop);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.request();
        }
    }
}

/// Passes on messages, and sends those of the function.
#[cold]
pub(crate) fn exchange_messages(function: &mut impl NetworkFunction, endpoint: &mut Endpoint, takes: bool) {
    while takes && let Some(message) = endpoint.next_message() {
        function.message(&message);
    }
    while let Some(message) = function.sends() {
        // It is lost, as one that its receiver reads too slowly.
        let _ = endpoint.send_message(message);
    }
}

fn serve<F: NetworkFunction>(endpoint: &mut Endpoint, make: &impl Fn(&ThreadContext<'_>) -> F) {
    let mut function = make(&ThreadContext::new(endpoint));
    let mut epoch = endpoint.epoch();
    let tick = clock::cycles_in_micros(TICK_MICROS);
    let mut next_tick = 0;
    let mut own = [0; MAX_COUNTERS];
    let takes_messages = endpoint.thread() == 0;
    let mut run_periodic = |function: &mut F, endpoint: &mut Endpoint, idle: bool| {
        let now = clock::cycles();
        let due = now >= next_tick;
        if due {
            next_tick = now + tick;
            function.tick();
            function.send_due(&mut endpoint.outbox());
        }
        if function.withdraws() {
            endpoint.withdraw();
        }
        // Ten times a second, and before each sleep, so that the counters of an idle NF are exact.
        if due || idle {
            function.report(&mut own);
            endpoint.report(&own);
            exchange_messages(function, endpoint, takes_messages);
        }
    };
    loop {
        match endpoint.receive_with(|endpoint| run_periodic(&mut function, endpoint, true)) {
            Some(mut burst) => {
                if burst.epoch() != epoch {
                    epoch = burst.epoch();
                    function.changed(&burst.context());
                }
                function.burst(&mut burst);
            }
            None => break,
        }
        run_periodic(&mut function, endpoint, false);
    }
    function.finish(&mut endpoint.outbox());
    function.report(&mut own);
    endpoint.report(&own);
}
