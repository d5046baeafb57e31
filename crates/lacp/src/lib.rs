// SPDX-License-Identifier: Apache-2.0
//! The Link Aggregation Control Protocol of one bond (IEEE 802.1AX-2014, clause 6), without I/O.
//!
//! In: link states, frames that members have received, and the time. Out: frames to send, and for each member whether
//! it receives ([`MemberView::collects`]) and sends ([`MemberView::distributes`]). All members that reach the same
//! partner form one aggregation; the largest of these groups carries traffic.
//!
//! Of the standard's machines, Receive, Periodic, Selection, Mux (with independent control) and Transmit are here, and
//! the mandatory Marker Responder. Churn Detection and the Marker Generator are not. A member joins at once: the
//! standard's two seconds of `aggregate_wait_time` bundle changes for hardware that is slow to program.
//!
//! ```text
//! Receive:  disabled ─link up─▶ expired ─3 s─▶ defaulted
//!                                 ▲  └──LACPDU─▶ current ◀─LACPDU─┘
//!                                 └─3 s or 90 s─────┘
//! Mux:      detached ─selected─▶ attached ─partner in sync─▶ collecting ─partner collects─▶ distributing
//! ```

#![forbid(unsafe_code)]

mod bond;
mod member;
mod pdu;

pub use bond::{Bond, Settings};
pub use member::MemberView;
pub use pdu::{FRAME_LEN, Frame, LACP_GROUP, Participant, SLOW_PROTOCOLS, System};
