//! A host as people write it: named items with fields, in the order and with the words of the TOML form. Rendering,
//! JSON and plans all work from this one form, so that what a plan says is what the file says.

use toml::Value;

use crate::model::{
    AclDefault, Balance, Chain, Eviction, Group, Host, Idle, NfConfig, NfStart, OnFailure, Output,
    PortConfig, PortKind, VhostDma, VmConfig,
};

mod policy;
mod router;
mod vm;

pub(crate) use vm::{ACCEL, MANUAL, NOTIFY, RESTART};

/// One `[table]` or `[[table]]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    /// What it is called: the value of `name` or `role`; empty for what has none.
    pub(crate) name: String,
    /// Keys and values in the order in which they are written.
    pub(crate) fields: Vec<(&'static str, Value)>,
}

impl Item {
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.fields.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

/// A whole file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) engine: Item,
    pub(crate) switch: Item,
    pub(crate) policy: Item,
    pub(crate) groups: Vec<Item>,
    pub(crate) ports: Vec<Item>,
    pub(crate) nfs: Vec<Item>,
    pub(crate) vms: Vec<Item>,
    pub(crate) routers: Vec<Item>,
    pub(crate) chains: Vec<Item>,
    pub(crate) rules: Vec<Item>,
}

impl Document {
    pub(crate) fn new(host: &Host) -> Self {
        Self {
            engine: engine(host),
            switch: policy::switch(host),
            policy: policy::whole(host),
            groups: host.groups.iter().map(|item| group(host, item)).collect(),
            ports: host
                .ports
                .iter()
                .filter(|item| host.punted_by(item.id).is_none())
                .map(|item| port(host, item))
                .collect(),
            nfs: host.nfs.iter().map(|item| nf(host, item)).collect(),
            vms: host.vms.iter().map(|item| vm::item(host, item)).collect(),
            routers: host.routers.iter().map(|item| router::item(host, item)).collect(),
            chains: host.chains.iter().map(|item| chain(host, item)).collect(),
            rules: host.rules.iter().map(|item| policy::rule(host, item)).collect(),
        }
    }

    /// One port.
    pub(crate) fn port(host: &Host, item: &PortConfig) -> Item {
        port(host, item)
    }

    /// One virtual machine.
    pub(crate) fn vm(host: &Host, item: &VmConfig) -> Item {
        vm::item(host, item)
    }

    /// The tables, by the key that each has in the file.
    pub(crate) const fn tables(&self) -> [(&'static str, &Item); 3] {
        [("engine", &self.engine), ("switch", &self.switch), ("policy", &self.policy)]
    }

    /// The arrays of tables, by the key that each has in the file.
    pub(crate) fn sections(&self) -> [(&'static str, &[Item]); 7] {
        [
            ("group", &self.groups),
            ("port", &self.ports),
            ("nf", &self.nfs),
            ("vm", &self.vms),
            ("router", &self.routers),
            ("chain", &self.chains),
            ("rule", &self.rules),
        ]
    }
}

fn engine(host: &Host) -> Item {
    let engine = &host.engine;
    let mut fields = vec![
        ("cores", list(&engine.cores)),
        ("idle", text(idle_word(engine.idle))),
        ("huge_pages", Value::Boolean(engine.huge_pages)),
        ("ring_size", engine.ring_size.into()),
        ("flow_cache", policy::flow_cache(&engine.flow_cache)),
    ];
    if !engine.nodes.is_empty() {
        fields.push(("nodes", Value::Array(engine.nodes.iter().map(|cores| list(cores)).collect())));
    }
    Item { name: String::new(), fields }
}

fn group(host: &Host, group: &Group) -> Item {
    let mut fields = vec![
        ("name", text(&group.name)),
        ("buffers", group.buffers.into()),
        ("buffer_size", group.buffer_size.into()),
        ("headroom", number(group.headroom)),
    ];
    if let Some(ports) = &group.may_send_to {
        let names = ports.iter().filter_map(|id| host.port(*id)).map(|port| text(&port.name));
        fields.push(("may_send_to", Value::Array(names.collect())));
    }
    Item { name: group.name.clone(), fields }
}

fn port(host: &Host, port: &PortConfig) -> Item {
    let mut fields = vec![("name", text(&port.name)), ("kind", text(port.kind.word()))];
    match &port.kind {
        PortKind::Pci { address } => fields.push(("address", text(address))),
        PortKind::AfXdp { interface, generic } => {
            fields.push(("interface", text(interface)));
            fields.push(("generic", Value::Boolean(*generic)));
        }
        PortKind::AfPacket { interface } | PortKind::Tap { interface } => {
            fields.push(("interface", text(interface)));
        }
        PortKind::VhostUser { path, mode, dma } => {
            fields.push(("path", text(&path.to_string_lossy())));
            fields.push(("mode", text(mode.word())));
            if *dma != VhostDma::Off {
                fields.push(("dma", text(dma.word())));
            }
        }
        PortKind::Pcap { input, output, paced } => {
            fields.extend(input.iter().map(|path| ("input", text(&path.to_string_lossy()))));
            fields.extend(output.iter().map(|path| ("output", text(&path.to_string_lossy()))));
            fields.push(("paced", Value::Boolean(*paced)));
        }
        PortKind::Null { size } => fields.push(("size", number(*size))),
        PortKind::Source(source) => {
            fields.push(("size", number(source.size)));
            fields.push(("flows", source.flows.into()));
            if let Some(rate) = source.rate {
                fields.push(("rate", large(rate)));
                fields.push(("burst", number(source.burst)));
            }
            fields.push(("lossless", Value::Boolean(source.lossless)));
            fields.extend(source.count.map(|count| ("count", large(count))));
        }
        PortKind::Sink => {}
    }
    fields.push(("mtu", number(port.mtu)));
    fields.push(("queues", number(port.queues)));
    fields.extend(port.group.and_then(|id| host.group(id)).map(|group| ("group", text(&group.name))));
    policy::port_fields(host, &port.policy, &mut fields);
    Item { name: port.name.clone(), fields }
}

fn nf(host: &Host, nf: &NfConfig) -> Item {
    let mut fields = vec![("role", text(&nf.role))];
    fields.extend(host.group(nf.group).map(|group| ("group", text(&group.name))));
    if nf.flow_verdicts > 0 {
        fields.push(("flow_verdicts", number(nf.flow_verdicts)));
    }
    match &nf.start {
        NfStart::Managed { command, user, replicas, standby, cores, environment, threads } => {
            fields.push(("command", texts(command)));
            fields.push(("user", text(user)));
            fields.push(("replicas", number(*replicas)));
            fields.push(("standby", number(*standby)));
            fields.push(("threads", number(*threads)));
            fields.push(("balance", text(balance_word(nf.balance))));
            fields.push(("cores", list(cores)));
            let variables = environment.iter().map(|(name, value)| (name.clone(), text(value)));
            fields.push(("environment", Value::Table(variables.collect())));
        }
        NfStart::External { users } => {
            fields.push(("attach_users", texts(users)));
            fields.push(("balance", text(balance_word(nf.balance))));
        }
    }
    Item { name: nf.role.clone(), fields }
}

fn chain(host: &Host, chain: &Chain) -> Item {
    let hops = chain.hops.iter().filter_map(|id| host.nf(*id)).map(|nf| text(&nf.role));
    let mut fields = vec![
        ("name", text(&chain.name)),
        ("hops", Value::Array(hops.collect())),
        ("on_failure", text(on_failure_word(chain.on_failure))),
    ];
    match chain.output {
        Output::Port(id) => fields.extend(host.port(id).map(|port| ("output", text(&port.name)))),
        Output::Ingress => fields.push(("output", text(INGRESS))),
        Output::Normal => fields.push(("output", policy::table(vec![("normal", Value::Boolean(true))]))),
        Output::Router(id) => fields
            .extend(policy::router(host, id).map(|name| ("output", policy::table(vec![("router", name)])))),
        Output::None => {}
    }
    Item { name: chain.name.clone(), fields }
}

/// The word that stands for the port of ingress in a chain's `output`.
pub(crate) const INGRESS: &str = "ingress";

/// The words of [`Idle`].
pub(crate) const IDLE: &[(&str, Idle)] = &[("adaptive", Idle::Adaptive), ("poll", Idle::Poll)];
/// The words of [`Eviction`].
pub(crate) const EVICTION: &[(&str, Eviction)] = &[("clock", Eviction::Clock), ("lru", Eviction::Lru)];
/// The words of [`AclDefault`].
pub(crate) const ACL: &[(&str, AclDefault)] = &[("allow", AclDefault::Allow), ("deny", AclDefault::Deny)];
/// The words of [`Balance`].
pub(crate) const BALANCE: &[(&str, Balance)] = &[
    ("least-occupied", Balance::LeastOccupied),
    ("flow-hash", Balance::FlowHash),
    ("sticky", Balance::Sticky),
];
/// The words of [`OnFailure`].
pub(crate) const ON_FAILURE: &[(&str, OnFailure)] =
    &[("drop", OnFailure::Drop), ("bypass", OnFailure::Bypass), ("standby", OnFailure::Standby)];

fn word<T: PartialEq>(words: &'static [(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word)
}

fn idle_word(idle: Idle) -> &'static str {
    word(IDLE, &idle)
}

fn balance_word(balance: Balance) -> &'static str {
    word(BALANCE, &balance)
}

fn on_failure_word(policy: OnFailure) -> &'static str {
    word(ON_FAILURE, &policy)
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn texts(list: &[String]) -> Value {
    Value::Array(list.iter().map(|item| text(item)).collect())
}

fn number(number: u16) -> Value {
    Value::Integer(number.into())
}

/// TOML's integers end at 2^63 - 1, and so do those that the parser lets through.
fn large(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

fn list(numbers: &[u32]) -> Value {
    Value::Array(numbers.iter().map(|number| Value::from(*number)).collect())
}
