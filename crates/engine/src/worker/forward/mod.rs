// SPDX-License-Identifier: Apache-2.0
//! Stages that decide by which port packets leave: L2 switching, virtual routers, and the rules of the port itself.

mod advertise;
pub(crate) mod bond;
pub(crate) mod bridge;
pub(crate) mod egress;
pub(crate) mod nat;
pub(crate) mod punt;
pub(crate) mod route;
pub(crate) mod tunnel;
pub(crate) mod vlan;
