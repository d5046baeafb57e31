// SPDX-License-Identifier: Apache-2.0
//! Arbitrary descriptors in the rings of an attached NF.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use netlib::{ChainId, Endpoint, Idle, Options, Packet, PortId, RoleId, Steer, Verdict, Waiting};
use netvm_attach::{Fds, Hello, Ready};
use netvm_region::{
    Admission, Balance, Control, Destination, Geometry, Pages, Region, RegionSpec, RingRef, Table,
    TablePublisher,
};
use netvm_ring::{Consumer, Descriptor, Producer, word_offsets};
use rustix::event::{EventfdFlags, eventfd};

use crate::input::Input;

/// Of the first worker, and of a second one that comes and goes: the region of its packets.
const WORKERS: [u8; 2] = [0, 1];
const RING: u32 = 64;
/// The direct rings from the hostile NF thread 2 to the NF, which is NF thread 1, and back.
const RX_RING: u16 = 0;
const TX_RING: u16 = 1;
const TAIL_AT: u64 = 128;
/// Longest burst.
const MAX_BURST: usize = 48;

/// Feeds an NF arbitrary descriptors through the engine's rings and through the ring of another NF of its group, and
/// applies arbitrary changes to its packets.
pub fn nf_descriptors(data: &[u8]) {
    thread_local!(static HOST: RefCell<Host> = RefCell::new(Host::new()));
    HOST.with_borrow_mut(|host| host.play(&mut Input::new(data)));
}

/// The engine's end, the other NF's end, and the NF: up to two workers, each with its own region.
struct Host {
    regions: Vec<Region>,
    /// The number of workers now.
    workers: usize,
    to: Vec<Producer>,
    from: Vec<Consumer>,
    out_of: Consumer,
    endpoint: Endpoint,
    // Kept mapped for the ends above.
    control: Control,
    table: TablePublisher,
    _socket: OwnedFd,
}

impl Host {
    fn new() -> Self {
        let region = |stride, buffers, large| {
            let spec = RegionSpec { buffers, stride, headroom: 64, large, rings: 2, ring_capacity: RING };
            Region::create("fuzz", spec, Pages::Normal, None).expect("a few MiB")
        };
        let regions = vec![region(256, 8, 0), region(512, 5, 2)];
        let admission = Admission {
            layout: netvm_region::LAYOUT_VERSION,
            quota: netvm_region::Quota::default(),
            group: 0,
            role: 0,
            ring_capacity: RING,
            nf_threads: vec![1],
            workers: WORKERS.len() as u16,
            worker_regions: WORKERS.to_vec(),
            geometries: regions.iter().map(|region| *region.geometry()).collect(),
            mailbox: false,
        };
        let control = Control::create("fuzz", &admission, None).expect("control memory");
        let mut table = TablePublisher::create("fuzz").expect("table memory");
        table.publish(&next_hops());
        for index in [RX_RING, TX_RING] {
            regions[0].ring(index).expect("two rings").initialise();
        }
        let (endpoint, socket) = attach(&regions, &control, &table);
        // SAFETY: the only ends of these rings on this side; the fields are dropped before the memory that holds the
        // rings.
        let ends = |worker| unsafe {
            (control.ring_to_nf(0, worker).producer(), control.ring_from_nf(0, worker).consumer())
        };
        let (to, from) = (0..WORKERS.len() as u16).map(ends).unzip();
        // SAFETY: as above.
        let out_of = unsafe { regions[0].ring(TX_RING).expect("two rings").consumer() };
        let workers = WORKERS.len();
        Self { regions, workers, to, from, out_of, endpoint, control, table, _socket: socket }
    }

    fn play(&mut self, input: &mut Input<'_>) {
        self.set_workers(WORKERS.len());
        while !input.is_empty() {
            let choice = input.u8();
            if choice % 16 == 15 {
                self.set_workers(1 + usize::from(choice >> 4) % WORKERS.len());
                continue;
            }
            let count = usize::from(input.u8()) % (MAX_BURST + 1);
            let descriptors: Vec<_> = (0..count).map(|_| descriptor(input)).collect();
            if choice % 3 == 2 {
                self.publish_hostile(&descriptors, input);
            } else {
                let worker = usize::from(choice % 3).min(self.workers - 1);
                assert_eq!(self.to[worker].push(&descriptors), count, "the NF left descriptors in its ring");
                self.receive(descriptors, input);
            }
        }
    }

    /// Announces so many workers. The NF has no packets, and sees the change at its next look into its rings.
    fn set_workers(&mut self, workers: usize) {
        if workers != self.workers {
            self.workers = workers;
            self.control.set_workers(&WORKERS[..workers]);
            self.table.publish(&next_hops());
        }
    }

    /// As NF thread 2: writes descriptors to slots, and a tail that may not match them.
    fn publish_hostile(&mut self, descriptors: &[Descriptor], input: &mut Input<'_>) {
        let ring = self.regions[0].ring(RX_RING).expect("two rings");
        let (head, _) = ring.claims();
        let base = self.ring_at(RX_RING);
        for (n, descriptor) in (0..).zip(descriptors) {
            for (word, at) in descriptor.to_words().into_iter().zip(word_offsets(head.wrapping_add(n), RING))
            {
                self.word(base + at as u64).store(word, Ordering::Relaxed);
            }
        }
        let choice = input.u8();
        let claimed = match choice % 4 {
            0 => input.u32(),
            1 => u32::from(choice),
            _ => descriptors.len() as u32,
        };
        let slots: Vec<_> = (0..RING).map(|n| self.slot(head.wrapping_add(n))).collect();
        self.tail().store(head.wrapping_add(claimed), Ordering::Release);
        let plausible = if claimed > RING { 0 } else { claimed as usize };
        self.receive(slots[..plausible].to_vec(), input);
        assert_eq!(
            ring.claims().0,
            head.wrapping_add(plausible as u32),
            "the NF followed an impossible tail"
        );
        self.tail().store(ring.claims().0, Ordering::Release);
    }

    fn slot(&self, index: u32) -> Descriptor {
        let words = word_offsets(index, RING).map(|at| self.word(self.ring_at(RX_RING) + at as u64));
        Descriptor::from_words(words.map(|word| word.load(Ordering::Relaxed)))
    }

    fn ring_at(&self, index: u16) -> u64 {
        let geometry = self.regions[0].geometry();
        geometry.rings_at + u64::from(index) * u64::from(geometry.ring_stride)
    }

    fn tail(&self) -> &AtomicU32 {
        // SAFETY: within the mapping and only accessed as an atomic.
        unsafe { self.regions[0].mapping().at::<AtomicU32>(self.ring_at(RX_RING) + TAIL_AT).as_ref() }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: within the mapping; slots are only accessed as atomics.
        unsafe { self.regions[0].mapping().at::<AtomicU64>(at).as_ref() }
    }

    /// Receives until the rings are empty. The valid descriptors of `sent` must arrive in order, and nothing else.
    fn receive(&mut self, mut sent: Vec<Descriptor>, input: &mut Input<'_>) {
        let geometries: Vec<_> = self.regions.iter().map(|region| *region.geometry()).collect();
        let geometry = |d: &Descriptor| geometries[..self.workers].get(usize::from(d.worker()));
        sent.retain(|d| geometry(d).is_some_and(|g| g.contains(d.buffer(), d.offset(), d.length())));
        let mut expected = sent.into_iter();
        // A whole burst of invalid descriptors arrives as nothing, so an empty receive does not mean an empty ring.
        for _ in 0..=RING / netlib::BURST as u32 + 1 {
            let Some(mut burst) = self.endpoint.try_receive() else { continue };
            let count = burst.len();
            assert!((1..=netlib::BURST).contains(&count) && burst.packet(count).is_none());
            for n in 0..count {
                let descriptor = expected.next().expect("more packets than valid descriptors");
                let packet = burst.packet(n).expect("within the burst");
                let geometry = &geometries[usize::from(descriptor.worker())];
                let verdict = check(packet, descriptor, geometry, input);
                burst.set(n, verdict);
            }
            drop(burst);
            assert_eq!(self.take_back(), count, "a packet did not leave exactly once");
        }
        assert_eq!(expected.next(), None, "a valid descriptor was lost");
        self.assert_outside_untouched();
    }

    /// Drains the NF's tx rings and returns the number of descriptors, all of which must be valid.
    fn take_back(&mut self) -> usize {
        let mut out = [Descriptor::default(); RING as usize];
        let mut count = 0;
        for consumer in self.from.iter_mut().chain([&mut self.out_of]) {
            let popped = consumer.pop(&mut out);
            for d in &out[..popped] {
                let geometry = self.regions[usize::from(d.worker())].geometry();
                assert!(geometry.contains(d.buffer(), d.offset(), d.length()), "{d:?} is invalid");
            }
            assert_eq!(consumer.faults(), 0);
            count += popped;
        }
        count
    }

    /// Checks the bytes after the last buffer of each region.
    fn assert_outside_untouched(&self) {
        for region in &self.regions {
            let geometry = region.geometry();
            let end = geometry.buffers_at + u64::from(geometry.numbers()) * u64::from(geometry.stride);
            for at in (end..end + 2048).step_by(8) {
                // SAFETY: within the mapping, whose last page is not full of buffers; one thread accesses it.
                let word = unsafe { region.mapping().at::<u64>(at).read_volatile() };
                assert_eq!(word, 0, "write after the last buffer");
            }
        }
    }
}

/// Next hops that send verdicts to the engine, to NF thread 2, and to NF threads that do not exist.
fn next_hops() -> Box<Table> {
    let mut table = Table::new_boxed();
    table.hops[0][1] = Destination::nf_threads(1, Balance::LeastOccupied, &[2]);
    table.hops[1] = [Destination::nf_threads(3, Balance::FlowHash, &[2, 3, 63]); 16];
    table.hops[2] = [Destination::nf_threads(0, Balance::LeastOccupied, &[63, 2, 1]); 16];
    table.roles[1] = Destination::nf_threads(0, Balance::LeastOccupied, &[2, 5]);
    table.hop_roles[0][1] = 3;
    table.rings[2][1] = RingRef::new(0, RX_RING);
    table.rings[1][2] = RingRef::new(0, TX_RING);
    // Rings that do not exist.
    table.rings[3][1] = RingRef::new(0, 2);
    table.rings[1][3] = RingRef::new(9, 0);
    table.looped = 1;
    table
}

/// Attaches the NF, playing netvmd on the other end.
fn attach(regions: &[Region], control: &Control, table: &TablePublisher) -> (Endpoint, OwnedFd) {
    static SOCKETS: AtomicU32 = AtomicU32::new(0);
    let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("netvm-fuzz-{}-{number}.sock", std::process::id()));
    let listener = netvm_attach::listen(&path).expect("a socket");
    let options = Options { waiting: Waiting::Poll, socket: Some(path.clone()), ..Options::new("fuzz") };
    let nf =
        std::thread::spawn(move || netlib::attach(&options).expect("attached").into_endpoints().remove(0));
    let wake = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd");
    let wakes: Vec<_> = (0..5).map(|_| wake()).collect();
    let socket = loop {
        match rustix::net::accept(&listener) {
            Ok(socket) => break socket,
            Err(_) => std::thread::yield_now(),
        }
    };
    // Nobody else attaches. A path that is already gone is no error.
    let _ = std::fs::remove_file(&path);
    netvm_attach::receive::<Hello>(&socket).expect("a ready_message");
    let fds = Fds {
        control: control.as_fd(),
        table: table.as_fd(),
        regions: regions.iter().map(AsFd::as_fd).collect(),
        workers: wakes[..2].iter().map(AsFd::as_fd).collect(),
        nf_threads: wakes[2..].iter().map(AsFd::as_fd).collect(),
    };
    netvm_attach::welcome(&socket, &fds).expect("admitted");
    netvm_attach::receive::<Ready>(&socket).expect("ready");
    (nf.join().expect("attached"), socket)
}

/// A valid, nearly valid or random descriptor.
fn descriptor(input: &mut Input<'_>) -> Descriptor {
    match input.u8() % 4 {
        0 => Descriptor::from_words([input.u64(), input.u64()]),
        1 => Descriptor::new(u32::from(input.u8() % 10), input.u16() % 600, input.u16() % 600).on_path(
            input.u16(),
            input.u8(),
            input.u16(),
            input.u8() % 4,
        ),
        _ => Descriptor::new(u32::from(input.u8() % 5), 64, u16::from(input.u8()) % 193)
            .on_path(u16::from(input.u8() % 4), 0, 1, input.u8() % 2)
            .with_hash(input.u8()),
    }
}

/// Checks that a packet matches its descriptor, and stays within its buffer under any change. Returns a verdict for it.
fn check(
    mut packet: Packet<'_>,
    descriptor: Descriptor,
    geometry: &Geometry,
    input: &mut Input<'_>,
) -> Verdict {
    assert_eq!((packet.headroom(), packet.len()), (descriptor.offset().into(), descriptor.length().into()));
    assert_eq!((packet.chain(), packet.hop()), (descriptor.chain(), descriptor.hop()));
    assert_eq!((packet.ingress(), packet.hash()), (PortId(descriptor.ingress()), descriptor.hash()));
    for _ in 0..input.u8() % 4 {
        resize(&mut packet, input.u8(), usize::from(input.u16()));
        let size = geometry.size_of(descriptor.buffer()) as usize;
        assert_eq!(packet.headroom() + packet.len() + packet.tailroom(), size);
        packet.data_mut().fill(0xa5);
        assert_eq!(packet.data().len(), packet.len());
        packet.prefetch();
    }
    match input.u8() % 9 {
        0 | 1 => Verdict::Next,
        2 => Verdict::Drop,
        3 => Verdict::Port(PortId(input.u16())),
        4 => Verdict::DropFlow(Idle(input.u16())),
        5 => Verdict::SkipFlow(Idle(input.u16())),
        6 => Verdict::SteerFlow(Steer::Chain(ChainId(input.u16()))),
        7 => Verdict::SteerFlow(Steer::Back),
        _ => Verdict::Role(RoleId(input.u16() % 140)),
    }
}

fn resize(packet: &mut Packet<'_>, how: u8, by: usize) {
    let (length, headroom, tailroom) = (packet.len(), packet.headroom(), packet.tailroom());
    let (done, possible, expected) = match how % 4 {
        0 => (packet.prepend(by).is_some(), by <= headroom, length + by),
        1 => (packet.append(by).is_some(), by <= tailroom, length + by),
        2 => (packet.trim_front(by).is_some(), by <= length, length.saturating_sub(by)),
        _ => (packet.truncate(by).is_some(), by <= length, by),
    };
    assert_eq!(done, possible, "{how}, by {by}, of {headroom} + {length} + {tailroom}");
    assert_eq!(packet.len(), if done { expected } else { length });
}
