//! `[[vm]]`.

use toml::Value;

use super::{Item, list, number, text, texts, word};
use crate::model::{Guest, Host, Restart, VmAccel, VmBoot, VmConfig, VmNotify, VmStart};

/// The words of [`VmAccel`].
pub(crate) const ACCEL: &[(&str, VmAccel)] =
    &[("kvm:tcg", VmAccel::KvmOrTcg), ("kvm", VmAccel::Kvm), ("tcg", VmAccel::Tcg)];
/// The words of [`Restart`].
pub(crate) const RESTART: &[(&str, Restart)] =
    &[("on-failure", Restart::OnFailure), ("always", Restart::Always), ("never", Restart::Never)];

/// The word for [`VmStart::Manual`]; the others are `true` and `false`.
pub(crate) const MANUAL: &str = "manual";

/// The words of [`VmNotify`].
pub(crate) const NOTIFY: &[(&str, VmNotify)] = &[("poll", VmNotify::Poll), ("doorbell", VmNotify::Doorbell)];

pub(super) fn item(host: &Host, vm: &VmConfig) -> Item {
    let mut fields = vec![("name", text(&vm.name))];
    match &vm.guest {
        Guest::Nf { role, threads, notify } => {
            fields.extend(host.nf(*role).map(|nf| ("role", text(&nf.role))));
            fields.push(("threads", number(*threads)));
            fields.push(("notify", text(word(NOTIFY, notify))));
        }
        Guest::Ordinary { cards } => {
            let names = cards.iter().filter_map(|card| host.port(card.port)).map(|port| port.name.clone());
            fields.push(("ports", texts(&names.collect::<Vec<_>>())));
            let macs = cards.iter().map(|card| card.mac.to_string());
            fields.push(("macs", texts(&macs.collect::<Vec<_>>())));
        }
    }
    match &vm.boot {
        VmBoot::Kernel { kernel, initrd, append } => {
            fields.push(("kernel", text(&kernel.to_string_lossy())));
            fields.extend(initrd.iter().map(|path| ("initrd", text(&path.to_string_lossy()))));
            fields.push(("append", text(append)));
        }
        VmBoot::Image(path) => fields.push(("image", text(&path.to_string_lossy()))),
    }
    fields.push(("memory", vm.memory.into()));
    fields.push(("cpus", number(vm.cpus)));
    fields.push(("cores", list(&vm.cores)));
    fields.extend(vm.node.map(|node| ("node", Value::from(node))));
    fields.push(("accel", text(word(ACCEL, &vm.accel))));
    fields.push(("qemu", text(&vm.qemu)));
    fields.push(("user", text(&vm.user)));
    fields.push((
        "start",
        match vm.start {
            VmStart::WithNetvmd => Value::Boolean(true),
            VmStart::WhenTold => Value::Boolean(false),
            VmStart::Manual => text(MANUAL),
        },
    ));
    fields.push(("restart", text(word(RESTART, &vm.restart))));
    fields.push(("boot_timeout", vm.boot_timeout.into()));
    Item { name: vm.name.clone(), fields }
}
