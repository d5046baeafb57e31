//! What tracking remembers of the protocols over IP: [`Transport`].

mod handled;
mod sctp;
mod tcp;

pub(crate) use handled::{Handled, Stage};
pub use sctp::SctpState;
pub(crate) use sctp::{SAVED_SCTP, Sctp, SctpPacket};
pub(crate) use tcp::{SAVED_TCP, Tcp};
pub use tcp::{TcpEnd, TcpState};

/// What the protocol of a connection remembers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Tcp(Tcp),
    Sctp(Sctp),
    Other,
}
