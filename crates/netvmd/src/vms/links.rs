//! Which of a VM's cards are connected to their ports.

use netvm_vm::CardKind;

use super::recipe::VmRecipe;
use crate::engine_thread::EngineHandle;

/// Names of the VM's ports whose guest is connected.
async fn connected(engine: &EngineHandle, recipe: &VmRecipe) -> Vec<String> {
    let mut names: Vec<String> = recipe.machine.cards.iter().map(|card| card.name.clone()).collect();
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
pub(super) async fn has_driver(engine: &EngineHandle, recipe: &VmRecipe) -> bool {
    !connected(engine, recipe).await.is_empty()
}

/// The problem of a guest of an earlier netvmd with a vfio-user card that was not taken over: QEMU does not reconnect to the
/// card's socket.
pub(super) async fn lost_card(engine: &EngineHandle, recipe: &VmRecipe) -> Option<String> {
    let connected = connected(engine, recipe).await;
    let is_lost = |name: &String| !connected.contains(name);
    let mut cards = recipe.machine.cards.iter().filter(|card| card.kind == CardKind::VfioUser);
    let card = cards.find(|card| is_lost(&card.name))?;
    let name = &recipe.machine.name;
    Some(format!(
        "its card at port {} is lost, as no netvmd has served it for too long, and QEMU does not connect again: \
         `netvm vm stop {name}` and `netvm vm start {name}`",
        card.name
    ))
}
