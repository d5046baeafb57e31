// SPDX-License-Identifier: Apache-2.0
//! Programs at an interface's ingress by tc: a filter `bpf` with direct action at the qdisc `clsact`, which kernels
//! have that do not know tcx. In: a loaded program. Out: a filter behind those of others, which stay.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption,
};

use crate::Requests;

/// The two hooks of the qdisc.
const INGRESS: TcHandle = TcHandle { major: u16::MAX, minor: TcHandle::MIN_INGRESS };
const EGRESS: TcHandle = TcHandle { major: u16::MAX, minor: TcHandle::MIN_EGRESS };
/// The priority of a filter without others, as the kernel begins.
const FIRST: u16 = 0xc000;
/// All EtherTypes, as in the lower half of `tcm_info`; the upper half is the priority.
const ALL: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;

/// A filter that runs a program on what an interface receives. Dropping it removes it, and the qdisc if that came with
/// it and has no other filters.
#[derive(Debug)]
pub struct IngressFilter {
    requests: Requests,
    filter: TcHeader,
    has_made_qdisc: bool,
}

impl IngressFilter {
    /// Adds a filter at an interface of the calling thread's network namespace. Filters that are there already see
    /// packets before it.
    ///
    /// # Errors
    /// The kernel's error: `ENOENT` or `EOPNOTSUPP` if it has neither `clsact` nor filters `bpf`.
    pub fn add(index: u32, program: BorrowedFd<'_>) -> io::Result<Self> {
        let mut requests = Requests::open()?;
        let qdisc = qdisc(index);
        let has_made_qdisc = match requests
            .change(RouteNetlinkMessage::NewQueueDiscipline(qdisc), NLM_F_CREATE | NLM_F_EXCL)
        {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let mut filter = Self { requests, filter: header(index), has_made_qdisc };
        filter.filter = filter.attach(program)?;
        Ok(filter)
    }

    /// Adds the filter behind all others. Returns its place.
    fn attach(&mut self, program: BorrowedFd<'_>) -> io::Result<TcHeader> {
        let last = self.last_priority(INGRESS)?;
        // Behind the last possible priority there is none: the kernel chooses one then.
        let priority = last.map_or(Some(FIRST), |last| last.checked_add(1)).unwrap_or(0);
        let info = u32::from(priority) << 16 | ALL;
        let header = TcHeader { info, parent: INGRESS, ..self.filter.clone() };
        let mut message = message(header, TcFilterBpf::KIND);
        let options = [
            TcFilterBpfOption::ProgFd(program.as_raw_fd().unsigned_abs()),
            TcFilterBpfOption::ProgName("netvm".to_owned()),
            TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
        ];
        message.attributes.push(TcAttribute::Options(options.map(TcOption::Bpf).into()));
        let message = RouteNetlinkMessage::NewTrafficFilter(message);
        match self.requests.make(message, NLM_F_CREATE | NLM_F_EXCL)? {
            Some(RouteNetlinkMessage::NewTrafficFilter(made)) => Ok(made.header),
            _ => Err(io::Error::other("the kernel does not say which filter it has added")),
        }
    }

    /// The last priority of filters at a hook; `None` if there are none.
    fn last_priority(&mut self, hook: TcHandle) -> io::Result<Option<u16>> {
        let mut question = TcMessage::default();
        question.header = TcHeader { parent: hook, ..header(self.filter.index.cast_unsigned()) };
        let last = |last: &mut Option<u16>, message| {
            if let RouteNetlinkMessage::NewTrafficFilter(filter) = message {
                *last = (*last).max(Some((filter.header.info >> 16) as u16));
            }
        };
        self.requests.dump(&RouteNetlinkMessage::GetTrafficFilter(question), || None, last)
    }

    /// Whether there are filters at a hook; so if the kernel does not say.
    fn is_used(&mut self, hook: TcHandle) -> bool {
        self.last_priority(hook).map_or(true, |last| last.is_some())
    }
}

impl Drop for IngressFilter {
    fn drop(&mut self) {
        // If the interface has gone, the filter has, too.
        if self.filter.handle != TcHandle::UNSPEC {
            let message = message(self.filter.clone(), TcFilterBpf::KIND);
            let _ = self.requests.change(RouteNetlinkMessage::DelTrafficFilter(message), 0);
        }
        if self.has_made_qdisc && !self.is_used(INGRESS) && !self.is_used(EGRESS) {
            let qdisc = qdisc(self.filter.index.cast_unsigned());
            let _ = self.requests.change(RouteNetlinkMessage::DelQueueDiscipline(qdisc), 0);
        }
    }
}

fn header(index: u32) -> TcHeader {
    TcHeader { index: index.cast_signed(), ..TcHeader::default() }
}

fn message(header: TcHeader, kind: &str) -> TcMessage {
    let mut message = TcMessage::default();
    message.header = header;
    message.attributes = vec![TcAttribute::Kind(kind.to_owned())];
    message
}

fn qdisc(index: u32) -> TcMessage {
    let handle = TcHandle { major: u16::MAX, minor: 0 };
    message(TcHeader { handle, parent: TcHandle::CLSACT, ..header(index) }, "clsact")
}
