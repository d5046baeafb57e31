// SPDX-License-Identifier: Apache-2.0
//! Which of a VM's cards are connected to their ports.

use netvm_vm::CardKind;

use super::spec::VmSpec;
use crate::engine_thread::EngineHandle;

/// Names of the VM's ports whose guest is connected.
async fn connected(engine: &EngineHandle, spec: &VmSpec) -> Vec<String> {
    let mut names: Vec<String> = spec.machine.cards.iter().map(|card| card.name.clone()).collect();
    let connected = engine.call(move |engine| {
        let ports = engine.ports();
        names.retain(|name| {
            let id = engine.host().port_named(name).map(|port| port.id);
            ports.iter().any(|port| Some(port.id) == id && port.link == Some(true))
        });
        names
    });
    connected.await.unwrap_or_default()
}

/// Whether a driver has come up at one of the VM's ports.
pub(super) async fn has_driver(engine: &EngineHandle, spec: &VmSpec) -> bool {
    !connected(engine, spec).await.is_empty()
}

/// The problem of a guest of an earlier netvmd with a vfio-user card that was not taken over: QEMU does not reconnect
/// to the card's socket.
pub(super) async fn lost_card(engine: &EngineHandle, spec: &VmSpec) -> Option<String> {
    let connected = connected(engine, spec).await;
    let is_lost = |name: &String| !connected.contains(name);
    let mut cards = spec.machine.cards.iter().filter(|card| card.kind == CardKind::VfioUser);
    let card = cards.find(|card| is_lost(&card.name))?;
    let name = &spec.machine.name;
    Some(format!(
        "its card at port {} is lost, as no netvmd has served it for too long, and QEMU does not connect again: \
         `netvm vm stop {name}` and `netvm vm start {name}`",
        card.name
    ))
}
