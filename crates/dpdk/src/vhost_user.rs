//! Numbers of vhost-user messages (vhost-user, "Front-end message types"), both supported and refused ones.

#![allow(missing_docs, reason = "the specification says what they are")]

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const RESET_OWNER: u32 = 4;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_LOG_FD: u32 = 7;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SEND_RARP: u32 = 19;
pub const NET_SET_MTU: u32 = 20;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const SET_STATUS: u32 = 39;
pub const GET_STATUS: u32 = 40;
