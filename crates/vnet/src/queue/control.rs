// SPDX-License-Identifier: Apache-2.0
//! Control messages of packet sockets: the VLAN tag that the kernel removed from a packet.

/// A control buffer, aligned for `cmsghdr`.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub(crate) struct Control(pub(crate) [u8; 64]);

/// The VLAN tag that the kernel removed from the packet: its protocol and its value.
///
/// # Safety
/// The kernel has filled the message and its control buffer.
pub(crate) unsafe fn tag_of(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the caller's message, which the kernel has filled.
    let first = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (first.cmsg_level, first.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: this type of message carries the structure; it may be unaligned.
    let data: libc::tpacket_auxdata =
        unsafe { libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned() };
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let protocol = if known { data.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
    let [a, b] = protocol.to_be_bytes();
    let [c, d] = data.tp_vlan_tci.to_be_bytes();
    Some([a, b, c, d])
}
