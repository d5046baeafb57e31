// SPDX-License-Identifier: Apache-2.0
//! Messages between NFs of a trust group, and from netvmd to NFs. In: requests of attached NFs, on the threads of their
//! connections, or of the tasks of VMs. Out: messages in the sockets and mailboxes of others. A sender that sends too
//! many loses them, and a receiver that reads too slowly does; nobody waits.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netvm_attach::AttachError;
use netvm_attach::messages::{MAX_PAYLOAD, Message, Request, decode, encode, try_send};
use netvm_engine::InstanceId;
use netvm_model::{GroupId, RoleId};
use netvm_region::{BrokenMailbox, Control, Mailbox, Side};

use crate::events::{Bucket, Rate};
use crate::runtime::lock;

/// How many messages an NF may send.
const RATE: Rate = Rate { burst: 200, interval: Duration::from_millis(10) };

/// Role and trust group of an attached NF, by which messages find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) role: String,
    pub(crate) number: RoleId,
    pub(crate) group: GroupId,
}

/// How messages get to an NF.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Its attach socket.
    Socket(Arc<OwnedFd>),
    /// In a VM, its control memory.
    Mailbox(Arc<GuestMailbox>),
}

/// The mailbox of an NF in a VM.
#[derive(Debug)]
pub(crate) struct GuestMailbox {
    control: Arc<Control>,
    mailbox: Mutex<Mailbox>,
}

impl GuestMailbox {
    /// The one in this memory, for the first time.
    pub(crate) fn of(control: Arc<Control>) -> Option<Self> {
        let mailbox = Mutex::new(Mailbox::of(&control, Side::Engine)?);
        Some(Self { control, mailbox })
    }

    fn try_send(&self, message: &Message) -> Result<bool, AttachError> {
        Ok(lock(&self.mailbox).send(&self.control, &encode(message)?))
    }

    /// What the NF has sent next.
    pub(crate) fn receive(&self) -> Result<Option<Request>, MailError> {
        let body = lock(&self.mailbox).receive(&self.control)?;
        Ok(body.map(|body| decode(&body)).transpose()?)
    }
}

/// What an NF in a VM has sent is no message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MailError {
    #[error(transparent)]
    Broken(#[from] BrokenMailbox),
    #[error(transparent)]
    NoMessage(#[from] AttachError),
}

/// An attached NF.
#[derive(Debug)]
pub(crate) struct Member {
    address: Address,
    transport: Transport,
    takes_messages: bool,
    sends: Bucket,
    /// The load that it was told last.
    load: Option<u8>,
}

impl Member {
    pub(crate) fn new(address: Address, transport: Transport) -> Self {
        Self {
            address,
            transport,
            takes_messages: false,
            sends: Bucket::new(RATE, Instant::now()),
            load: None,
        }
    }

    /// Sends it a message. Returns whether there was room. One that has gone takes none.
    fn tell(&self, message: &Message) -> bool {
        let tell = || match &self.transport {
            Transport::Socket(socket) => try_send(&**socket, message),
            Transport::Mailbox(mailbox) => mailbox.try_send(message),
        };
        !self.takes_messages || tell().unwrap_or(true)
    }
}

/// What became of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct MessageCounts {
    /// Messages that NFs and netvmd sent, each counted for each receiver.
    pub(crate) delivered: u64,
    /// Receivers without room in their socket.
    pub(crate) full: u64,
    /// Messages of NFs that sent too many, or longer ones than they may.
    pub(crate) refused: u64,
    /// Messages to a role of which no other NF in the trust group takes messages.
    pub(crate) unreceived: u64,
}

#[derive(Debug, Default)]
struct Hub {
    members: BTreeMap<InstanceId, Member>,
    counts: MessageCounts,
}

/// The attached NFs that exchange messages; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages(Arc<Mutex<Hub>>);

impl Messages {
    pub(crate) fn join(&self, id: InstanceId, member: Member) {
        lock(&self.0).members.insert(id, member);
    }

    /// Forgets an NF; nobody else has its socket afterwards.
    pub(crate) fn leave(&self, id: InstanceId) {
        lock(&self.0).members.remove(&id);
    }

    /// Takes what an NF sends. Returns how long to wait before the next one: an NF that sends too much keeps only the
    /// thread of its own connection, and that one asleep.
    pub(crate) fn take(&self, id: InstanceId, request: Request) -> Duration {
        let hub = &mut *lock(&self.0);
        let Some(member) = hub.members.get_mut(&id) else { return Duration::ZERO };
        if member.sends.allows(Instant::now()).is_none() {
            hub.counts.refused += 1;
            return RATE.interval;
        }
        match request {
            Request::Subscribe => member.takes_messages = true,
            Request::Send { to, version, payload } => hub.pass_on(id, &to, version, payload),
        }
        Duration::ZERO
    }

    /// Tells an NF.
    pub(crate) fn tell(&self, id: InstanceId, message: &Message) {
        lock(&self.0).tell_those(message, |other, _| other == id);
    }

    /// Tells all NFs.
    pub(crate) fn tell_all(&self, message: &Message) {
        lock(&self.0).tell_those(message, |_, _| true);
    }

    /// Tells NFs the load of their role, if that is another than before.
    pub(crate) fn tell_loads(&self, load: impl Fn(RoleId) -> Option<f32>) {
        let hub = &mut *lock(&self.0);
        for member in hub.members.values_mut().filter(|member| member.takes_messages) {
            let Some(percent) = load(member.address.number).map(|load| load.clamp(0.0, 100.0).round() as u8)
            else {
                continue;
            };
            if member.load.replace(percent) != Some(percent) {
                let counter = if member.tell(&Message::Load { percent }) {
                    &mut hub.counts.delivered
                } else {
                    &mut hub.counts.full
                };
                *counter += 1;
            }
        }
    }

    /// Whether any NF takes messages.
    pub(crate) fn are_taken(&self) -> bool {
        lock(&self.0).members.values().any(|member| member.takes_messages)
    }

    /// What became of messages so far.
    pub(crate) fn counts(&self) -> MessageCounts {
        lock(&self.0).counts
    }
}

impl Hub {
    fn tell_those(&mut self, message: &Message, those: impl Fn(InstanceId, &Address) -> bool) -> u64 {
        let mut told = 0;
        for (id, member) in
            self.members.iter().filter(|(id, member)| member.takes_messages && those(**id, &member.address))
        {
            if member.tell(message) {
                told += 1;
            } else {
                self.counts.full += 1;
                tracing::debug!("instance {id} reads its messages too slowly: one is lost");
            }
        }
        self.counts.delivered += told;
        told
    }

    /// Passes a message on to the other NFs of a role in the sender's trust group.
    fn pass_on(&mut self, id: InstanceId, to: &str, version: u16, payload: Vec<u8>) {
        let Some(sender) = self.members.get(&id) else { return };
        if payload.len() > MAX_PAYLOAD {
            self.counts.refused += 1;
            return;
        }
        let Address { role, group, .. } = sender.address.clone();
        let message = Message::FromNf { role, instance: id.0, version, payload };
        let full = self.counts.full;
        let told = self.tell_those(&message, |other, address| {
            other != id && address.role == to && address.group == group
        });
        if told == 0 && full == self.counts.full {
            self.counts.unreceived += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use netvm_attach::messages::try_receive;

    use super::*;

    /// An NF of a role and a group: its number, and its end of the socket.
    fn joined(hub: &Messages, id: u32, role: &str, group: u16) -> (InstanceId, OwnedFd) {
        let (here, there) = netvm_attach::pair().unwrap();
        let address = Address { role: role.to_owned(), number: RoleId(id as u16), group: GroupId(group) };
        hub.join(InstanceId(id), Member::new(address, Transport::Socket(Arc::new(here))));
        (InstanceId(id), there)
    }

    fn send(to: &str, payload: Vec<u8>) -> Request {
        Request::Send { to: to.to_owned(), version: 3, payload }
    }

    fn next(socket: &OwnedFd) -> Option<Message> {
        try_receive(socket).unwrap()
    }

    #[test]
    fn a_message_reaches_the_nfs_of_the_role_in_the_same_group_that_take_messages() {
        let hub = Messages::default();
        let (sender, _socket) = joined(&hub, 1, "scan", 0);
        let (_, silent) = joined(&hub, 2, "log", 0);
        let [(one, first), (two, second), (other, outsider)] =
            [(3, 0), (4, 0), (5, 1)].map(|(id, group)| joined(&hub, id, "log", group));
        for id in [one, two, other] {
            hub.take(id, Request::Subscribe);
        }
        hub.take(sender, send("log", vec![1, 2]));
        let expected =
            Message::FromNf { role: "scan".to_owned(), instance: 1, version: 3, payload: vec![1, 2] };
        assert_eq!([next(&first), next(&second)], [Some(expected.clone()), Some(expected)]);
        assert_eq!([next(&first), next(&outsider), next(&silent)], [None, None, None]);
        // An NF does not tell itself.
        hub.take(one, send("log", Vec::new()));
        assert_eq!((next(&first), next(&second).is_some()), (None, true));
        hub.take(sender, send("none", Vec::new()));
        hub.take(sender, send("log", vec![0; MAX_PAYLOAD + 1]));
        hub.leave(two);
        hub.tell(two, &Message::Drain);
        hub.tell(one, &Message::Drain);
        hub.tell_all(&Message::Configured);
        assert_eq!(
            [next(&first), next(&first), next(&first)],
            [Some(Message::Drain), Some(Message::Configured), None]
        );
        assert_eq!(next(&outsider), Some(Message::Configured));
        hub.tell_loads(|role| (role == RoleId(3)).then_some(49.6));
        hub.tell_loads(|_| Some(49.9));
        assert_eq!([next(&first), next(&first)], [Some(Message::Load { percent: 50 }), None]);
        assert_eq!(next(&outsider), Some(Message::Load { percent: 50 }));
        let counts = MessageCounts { delivered: 8, full: 0, refused: 1, unreceived: 1 };
        assert_eq!(hub.counts(), counts);
    }

    #[test]
    fn who_sends_too_much_and_who_reads_too_slowly_loses_messages() {
        let hub = Messages::default();
        let (sender, _socket) = joined(&hub, 1, "scan", 0);
        let (receiver, _unread) = joined(&hub, 2, "log", 0);
        hub.take(receiver, Request::Subscribe);
        for _ in 0..1000 {
            hub.take(sender, send("log", vec![0xff; MAX_PAYLOAD]));
        }
        let counts = hub.counts();
        assert!(counts.full > 0 && counts.refused > 500 && counts.delivered > 0, "{counts:?}");
        assert_eq!(counts.delivered + counts.full + counts.refused, 1000);
    }
}
