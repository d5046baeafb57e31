// SPDX-License-Identifier: Apache-2.0
//! Numbers of vhost-user messages (vhost-user, "Front-end message types"), both supported and refused ones.

#![allow(missing_docs, reason = "the specification says what they are")]

use vhost::vhost_user::message::FrontendReq;

pub const GET_FEATURES: u32 = FrontendReq::GET_FEATURES as u32;
pub const SET_FEATURES: u32 = FrontendReq::SET_FEATURES as u32;
pub const SET_OWNER: u32 = FrontendReq::SET_OWNER as u32;
pub const RESET_OWNER: u32 = FrontendReq::RESET_OWNER as u32;
pub const SET_MEM_TABLE: u32 = FrontendReq::SET_MEM_TABLE as u32;
pub const SET_LOG_BASE: u32 = FrontendReq::SET_LOG_BASE as u32;
pub const SET_LOG_FD: u32 = FrontendReq::SET_LOG_FD as u32;
pub const SET_VRING_NUM: u32 = FrontendReq::SET_VRING_NUM as u32;
pub const SET_VRING_ADDR: u32 = FrontendReq::SET_VRING_ADDR as u32;
pub const SET_VRING_BASE: u32 = FrontendReq::SET_VRING_BASE as u32;
pub const GET_VRING_BASE: u32 = FrontendReq::GET_VRING_BASE as u32;
pub const SET_VRING_KICK: u32 = FrontendReq::SET_VRING_KICK as u32;
pub const SET_VRING_CALL: u32 = FrontendReq::SET_VRING_CALL as u32;
pub const SET_VRING_ERR: u32 = FrontendReq::SET_VRING_ERR as u32;
pub const GET_PROTOCOL_FEATURES: u32 = FrontendReq::GET_PROTOCOL_FEATURES as u32;
pub const SET_PROTOCOL_FEATURES: u32 = FrontendReq::SET_PROTOCOL_FEATURES as u32;
pub const GET_QUEUE_NUM: u32 = FrontendReq::GET_QUEUE_NUM as u32;
pub const SET_VRING_ENABLE: u32 = FrontendReq::SET_VRING_ENABLE as u32;
pub const SEND_RARP: u32 = FrontendReq::SEND_RARP as u32;
pub const NET_SET_MTU: u32 = FrontendReq::NET_SET_MTU as u32;
pub const SET_BACKEND_REQ_FD: u32 = FrontendReq::SET_BACKEND_REQ_FD as u32;
pub const GET_INFLIGHT_FD: u32 = FrontendReq::GET_INFLIGHT_FD as u32;
pub const SET_INFLIGHT_FD: u32 = FrontendReq::SET_INFLIGHT_FD as u32;
pub const GET_MAX_MEM_SLOTS: u32 = FrontendReq::GET_MAX_MEM_SLOTS as u32;
pub const ADD_MEM_REG: u32 = FrontendReq::ADD_MEM_REG as u32;
pub const REM_MEM_REG: u32 = FrontendReq::REM_MEM_REG as u32;
pub const SET_STATUS: u32 = FrontendReq::SET_STATUS as u32;
pub const GET_STATUS: u32 = FrontendReq::GET_STATUS as u32;
