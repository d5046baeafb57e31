// SPDX-License-Identifier: Apache-2.0
//! The compiler of libpcap, by its C functions: a crate that binds all of libpcap costs more to build than the rest
//! here.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use netvm_api::FilterProgram;

/// A handle of libpcap, `pcap_t`.
#[repr(C)]
struct Handle {
    _bytes: [u8; 0],
}

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *const Instruction,
}

/// DLT_EN10MB.
const ETHERNET: c_int = 1;
/// More bytes than packets have: a filter may look at all of a packet.
const SNAP: c_int = 65535;

#[link(name = "pcap")]
unsafe extern "C" {
    fn pcap_open_dead(linktype: c_int, snaplen: c_int) -> *mut Handle;
    fn pcap_compile(
        handle: *mut Handle,
        program: *mut Program,
        text: *const c_char,
        optimize: c_int,
        netmask: u32,
    ) -> c_int;
    fn pcap_geterr(handle: *mut Handle) -> *const c_char;
    fn pcap_freecode(program: *mut Program);
    fn pcap_close(handle: *mut Handle);
}

/// Compiles a filter for Ethernet: operation, two jumps and a constant for each instruction. The error is libpcap's.
pub(crate) fn compile(text: &str) -> Result<FilterProgram, String> {
    let text = CString::new(text).map_err(|_| "there is a zero byte in it".to_owned())?;
    // SAFETY: it takes two numbers, and returns a handle or null.
    let handle = unsafe { pcap_open_dead(ETHERNET, SNAP) };
    if handle.is_null() {
        return Err("libpcap has no memory".to_owned());
    }
    let mut program = Program { length: 0, instructions: std::ptr::null() };
    // SAFETY: the handle is open until the end of this function, `program` is written by the call, the text ends with
    // zero.
    let status = unsafe { pcap_compile(handle, &raw mut program, text.as_ptr(), 1, 0) };
    let result = if status == 0 {
        // SAFETY: after success `instructions` are as many as `length` says, until they are freed below; libpcap makes
        // no empty program.
        let instructions =
            unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) };
        let copy = instructions.iter().map(|one| (one.code, one.jt, one.jf, one.k)).collect();
        // SAFETY: the call above filled it, and nothing uses it later.
        unsafe { pcap_freecode(&raw mut program) };
        Ok(copy)
    } else {
        // SAFETY: the handle is open, and its message ends with zero.
        let why = unsafe { CStr::from_ptr(pcap_geterr(handle)) };
        Err(why.to_string_lossy().into_owned())
    };
    // SAFETY: it is open, and nothing uses it later.
    unsafe { pcap_close(handle) };
    result
}
