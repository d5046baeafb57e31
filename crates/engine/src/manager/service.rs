// SPDX-License-Identifier: Apache-2.0
//! The manager's turn: what it looks after by itself, again and again.

use super::kernel_flows::{self, Watching};
use super::{Engine, Notice, bonds, publish};
use crate::worker::{Event, Retired};

impl Engine {
    /// Handles the workers' events, and continues work that had to wait.
    pub fn service(&mut self) {
        self.handle_events();
        self.service_resize();
        self.latencies.service(&mut self.workers);
        if self.nfs.service(&self.host, &mut self.workers, &mut self.notices) {
            self.fast_paths.end_kept();
            self.publisher().publish();
        }
        let Self { host, ports, pairs, workers, notices, .. } = self;
        if pairs.service(host, &|port| ports.sender_of(port), workers, notices) {
            self.publish_programs();
        }
        self.service_bonds();
        self.service_multicast();
        self.reset_damaged();
        for (port, event) in self.rules.service() {
            self.notices.push(Notice::Switching { port, event });
        }
        if self.routers.service(&self.host, publish::policy::now()) {
            self.publisher().send_snapshots();
        }
        if self.chains.shorten_wanted(&self.host, &mut self.baselines, &self.workers) {
            self.publisher().publish_in_order();
        }
        self.traces.forget_published(&self.reaper);
        self.nfs.drop_retired(&self.ports.memories(), &mut self.workers);
        let (ports, mut context) = self.ports_in_context();
        ports.service(&mut context);
        self.service_kernel_flows();
    }

    /// Looks after the kernel's flow table.
    fn service_kernel_flows(&mut self) {
        let Self { fast_paths, host, rules, ports, workers, routers, captures, traces, .. } = self;
        let watching = Watching { captures, traces };
        let mut context = kernel_flows::Context { host, rules, ports, workers, routers, watching };
        if fast_paths.service(&mut context) {
            let snapshot = self.publisher().view().snapshot(0);
            self.fast_paths.decide(snapshot, &mut self.tracer, &mut self.memory);
        }
    }

    /// Watches the members of bonds.
    fn service_bonds(&mut self) {
        let Self { host, ports, bonds, workers, notices, .. } = self;
        if !bonds.service(&mut bonds::Context { host, ports, workers, notices }) {
            return;
        }
        self.publisher().send_snapshots();
        let Self { host, ports, bonds, workers, notices, rules, routers, .. } = self;
        bonds.announce(rules, routers, &mut bonds::Context { host, ports, workers, notices });
    }

    /// Handles the workers' events.
    fn handle_events(&mut self) {
        while let Some((worker, event)) = self.workers.next_event() {
            match event {
                Event::Swept(done, request) => self.nfs.swept(done, request),
                Event::Passed(ticket) => self.nfs.barrier_passed(ticket),
                Event::Traced(record) => self.traces.traced(record, &mut self.workers),
                Event::Flows(page) => self.flow_readers.page(page, &mut self.workers),
                Event::Monitor(page) => self.monitor_readers.page(page, &mut self.workers),
                Event::Visited(visit) => self.fast_paths.visited(&visit),
                Event::Connections(page) => self.connection_readers.connections(page, &mut self.workers),
                Event::Retired(Retired::Capture(capture)) => {
                    self.captures.capture_returned(worker, capture, &self.reaper);
                }
                // What comes here is too late: nobody waits for it any more.
                Event::PortRetired(..)
                | Event::QueueTaken(_)
                | Event::FlowsTaken(_)
                | Event::ConnectionsTaken(_) => {}
                Event::Retired(_) => {}
            }
        }
    }

    /// Learns groups, and sends queries.
    fn service_multicast(&mut self) {
        let Self { host, ports, workers, multicast, .. } = self;
        if multicast.service(host, ports, workers) {
            self.publisher().send_snapshots();
        }
    }

    /// Notes that the process of a program that is a hop has started or ended.
    pub fn set_program_process(&mut self, role: &str, instance: u16, runs: bool) {
        if self.pairs.set_process(role, instance, runs) {
            self.publish_programs();
        }
    }

    /// Publishes which programs get packets. Workers take new snapshots one after the other: one could send packets
    /// past a program while another one still forwards what it returns. So first all of them drop that.
    fn publish_programs(&mut self) {
        if self.pairs.any_leaves() && self.workers.len() > 1 {
            self.publisher().publish();
            self.workers.wait_for_all();
            self.workers.finish_handed_over();
        }
        self.pairs.settle();
        self.publisher().publish();
    }
}
