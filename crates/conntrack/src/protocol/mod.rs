// SPDX-License-Identifier: Apache-2.0
//! What tracking remembers of the protocols over IP: [`Transport`].

mod handled;
mod sctp;
mod tcp;

pub(crate) use handled::{Handled, Stage};
pub use sctp::SctpState;
pub(crate) use sctp::{SAVED_SCTP, Sctp, SctpPacket};
pub(crate) use tcp::{Kind, ProxyPhase, SAVED_TCP, Tcp, kind_of};
pub use tcp::{TcpEnd, TcpState};

/// What the protocol of a connection remembers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Tcp(Tcp),
    Sctp(Sctp),
    Other,
}

impl Transport {
    pub(crate) const fn tcp(&self) -> Option<&Tcp> {
        match self {
            Self::Tcp(tcp) => Some(tcp),
            Self::Sctp(_) | Self::Other => None,
        }
    }

    pub(crate) const fn tcp_mut(&mut self) -> Option<&mut Tcp> {
        match self {
            Self::Tcp(tcp) => Some(tcp),
            Self::Sctp(_) | Self::Other => None,
        }
    }

    /// How far the SYN proxy is with the connection.
    pub(crate) const fn proxy(&self) -> ProxyPhase {
        match self {
            Self::Tcp(tcp) => tcp.proxy,
            Self::Sctp(_) | Self::Other => ProxyPhase::None,
        }
    }
}
