//! `[[port]]`.

use std::path::PathBuf;

use toml::Spanned;

use super::{RawPort, name, port_policy};
use crate::document::INGRESS;
use crate::finding::Kind;
use crate::model::{PortKind, SourceConfig, VhostDma, VhostMode};
use crate::read::{Reader, at};

/// Ethernet's payload, and netvm's default.
const DEFAULT_MTU: u16 = 1500;
/// Ethernet's header: what a frame has besides the MTU.
const HEADER: u16 = 14;
/// Most queues of a port: one for each worker that there can be.
const MAX_QUEUES: u64 = crate::model::MAX_WORKERS as u64;
/// Longest frame: what fits the largest buffer behind a headroom of 256.
const MAX_FRAME: u64 = 65_472 - 256;
/// Longest interface name (`IFNAMSIZ` - 1).
const INTERFACE_BYTES: usize = 15;

/// Longest path of a socket (`sun_path` of `unix(7)`, without the NUL byte).
const SOCKET_BYTES: usize = 107;

/// Longest name of a DMA device (`RTE_DEV_NAME_MAX_LEN` of DPDK, without the NUL byte).
const DEVICE_BYTES: usize = 63;

const VHOST_MODES: &[(&str, VhostMode)] =
    &[(VhostMode::Server.word(), VhostMode::Server), (VhostMode::Client.word(), VhostMode::Client)];

const KINDS: &[(&str, Form)] = &[
    ("pci", Form::Pci),
    ("af_xdp", Form::AfXdp),
    ("af_packet", Form::AfPacket),
    ("tap", Form::Tap),
    ("vhost-user", Form::VhostUser),
    ("pcap", Form::Pcap),
    ("null", Form::Null),
    ("source", Form::Source),
    ("sink", Form::Sink),
];

/// Keys that only some kinds have.
const FOREIGN: &[(&str, &str)] = &[
    ("address", "kind = \"pci\""),
    ("interface", "kind = \"af_xdp\", \"af_packet\" and \"tap\""),
    ("generic", "kind = \"af_xdp\""),
    ("path", "kind = \"vhost-user\""),
    ("mode", "kind = \"vhost-user\""),
    ("dma", "kind = \"vhost-user\""),
    ("input", "kind = \"pcap\""),
    ("output", "kind = \"pcap\""),
    ("paced", "kind = \"pcap\""),
    ("size", "kind = \"source\" and \"null\""),
    ("flows", "kind = \"source\""),
    ("rate", "kind = \"source\""),
    ("burst", "kind = \"source\""),
    ("lossless", "kind = \"source\""),
    ("count", "kind = \"source\""),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Pci,
    AfXdp,
    AfPacket,
    Tap,
    VhostUser,
    Pcap,
    Null,
    Source,
    Sink,
}

pub(super) fn read(table: &Reader<'_>) -> RawPort {
    let name = name(table, "name", "client").filter(|name| {
        let reserved = name.get_ref() == INGRESS;
        if reserved {
            table
                .findings
                .note(Kind::BadName, format!("a port cannot be called `{INGRESS}`"))
                .at(name.span(), "means the port that a packet came in by")
                .help("give it another name")
                .keep();
        }
        !reserved
    });
    if table.key_span("kind").is_none() {
        let kinds: Vec<String> = KINDS.iter().map(|(word, _)| format!("`{word}`")).collect();
        table.missing("kind", format!("say what the port is: {}", kinds.join(", ")));
    }
    let form = table.word("kind", KINDS).map(Spanned::into_inner);
    let (kind, device) = form.map_or((None, None), |form| kind(table, form));
    let size = match &kind {
        Some(PortKind::Null { size }) => *size,
        Some(PortKind::Source(source)) => source.size,
        _ => 0,
    };
    let port = RawPort {
        span: table.span.clone(),
        name,
        queues: queues(table, form),
        mtu: mtu(table, size),
        group: table.text("group"),
        policy: port_policy::read(table),
        kind,
        device,
    };
    if form.is_none() {
        // Nobody knows which keys belong.
        table.know(FOREIGN.iter().map(|(key, _)| *key));
    }
    table.finish(FOREIGN);
    port
}

fn kind(table: &Reader<'_>, form: Form) -> (Option<PortKind>, Option<Spanned<String>>) {
    match form {
        Form::Pci => {
            let address = address(table);
            (address.clone().map(|address| PortKind::Pci { address: address.into_inner() }), address)
        }
        Form::AfXdp => {
            let generic = table.flag("generic").unwrap_or(false);
            let interface = interface(table);
            let kind =
                interface.clone().map(|name| PortKind::AfXdp { interface: name.into_inner(), generic });
            (kind, interface)
        }
        Form::AfPacket => {
            let interface = interface(table);
            (interface.clone().map(|name| PortKind::AfPacket { interface: name.into_inner() }), interface)
        }
        Form::Tap => {
            let interface = interface(table);
            (interface.clone().map(|name| PortKind::Tap { interface: name.into_inner() }), interface)
        }
        Form::VhostUser => vhost_user(table),
        Form::Pcap => pcap(table),
        Form::Null => (Some(PortKind::Null { size: size(table) }), None),
        Form::Source => (Some(PortKind::Source(source(table))), None),
        Form::Sink => (Some(PortKind::Sink), None),
    }
}

/// A PCI address with its domain, which may be left out in the file.
fn address(table: &Reader<'_>) -> Option<Spanned<String>> {
    if table.key_span("address").is_none() {
        table.missing("address", "name the device, such as `address = \"0000:3b:00.0\"` (see `lspci -D`)");
    }
    let address = table.text("address")?;
    let full = full_address(address.get_ref());
    if full.is_none() {
        table
            .bad_value("address", address.span(), &format!("cannot be `{}`", address.get_ref()))
            .help("a PCI address is domain:bus:device.function in hexadecimal digits, such as 0000:3b:00.0")
            .keep();
    }
    Some(at(address.span(), full?))
}

fn full_address(text: &str) -> Option<String> {
    let number = |digits: &str, length: usize, most: u32| {
        let value = u32::from_str_radix(digits, 16).ok()?;
        let plain = digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        (plain && value <= most).then_some(value)
    };
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':');
    let device = number(parts.next()?, 2, 0x1f)?;
    let bus = number(parts.next()?, 2, 0xff)?;
    let domain = parts.next().map_or(Some(0), |digits| number(digits, 4, 0xffff))?;
    let function = number(function, 1, 7)?;
    parts.next().is_none().then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

fn interface(table: &Reader<'_>) -> Option<Spanned<String>> {
    if table.key_span("interface").is_none() {
        table.missing("interface", "name the interface, such as `interface = \"eth1\"` (see `ip link`)");
    }
    let name = table.text("interface")?;
    let text = name.get_ref();
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let wrong = if text.is_empty() || text == "." || text == ".." {
        "no interface can be called this".to_owned()
    } else if text.len() > INTERFACE_BYTES {
        format!("{} characters long", text.len())
    } else if let Some(c) = text.chars().find(|c| bad(*c)) {
        format!("{c:?} cannot be in an interface's name")
    } else {
        return Some(name);
    };
    table
        .findings
        .note(Kind::BadName, format!("`interface` cannot be `{text}`"))
        .at(name.span(), wrong)
        .help(format!("Linux interface names have at most {INTERFACE_BYTES} characters"))
        .keep();
    None
}

fn vhost_user(table: &Reader<'_>) -> (Option<PortKind>, Option<Spanned<String>>) {
    let mode = table.word("mode", VHOST_MODES).map_or(VhostMode::default(), Spanned::into_inner);
    if table.key_span("path").is_none() {
        table.missing("path", "name the socket, such as `path = \"/run/netvm/guest.sock\"`");
    }
    let path = table.text("path").filter(|path| {
        let length = path.get_ref().len();
        let fits = (1..=SOCKET_BYTES).contains(&length) && !path.get_ref().contains('\0');
        if !fits {
            table
                .bad_value("path", path.span(), &format!("is {length} bytes long"))
                .help(format!("a socket's path has from 1 to {SOCKET_BYTES} bytes"))
                .keep();
        }
        fits
    });
    let dma = dma(table);
    let kind =
        path.as_ref().map(|path| PortKind::VhostUser { path: PathBuf::from(path.get_ref()), mode, dma });
    (kind, path)
}

fn dma(table: &Reader<'_>) -> VhostDma {
    let Some(word) = table.text("dma") else { return VhostDma::default() };
    let name = word.get_ref();
    match name.as_str() {
        "off" => VhostDma::Off,
        "auto" => VhostDma::Auto,
        _ if (1..=DEVICE_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            VhostDma::Device(name.clone())
        }
        _ => {
            table
                .bad_value("dma", word.span(), &format!("cannot be `{name}`"))
                .help("`off`, `auto`, or a DMA device as DPDK names it, such as `wq0.1`")
                .keep();
            VhostDma::Off
        }
    }
}

fn pcap(table: &Reader<'_>) -> (Option<PortKind>, Option<Spanned<String>>) {
    let paced = table.flag("paced").unwrap_or(false);
    let input = table.text("input");
    let output = table.text("output");
    if table.first_of(&["input", "output"]).is_none() {
        table.missing("input", "name a capture to read (`input`), one to write (`output`), or both");
    }
    let path = |text: &Option<Spanned<String>>| text.as_ref().map(|text| PathBuf::from(text.get_ref()));
    let kind = PortKind::Pcap { input: path(&input), output: path(&output), paced };
    (Some(kind), output)
}

fn size(table: &Reader<'_>) -> u16 {
    table.number("size", 60..=MAX_FRAME).map_or(SourceConfig::default().size, Spanned::into_inner)
}

fn source(table: &Reader<'_>) -> SourceConfig {
    let default = SourceConfig::default();
    let most = i64::MAX as u64;
    let rate = table.number("rate", 1..=most).map(Spanned::into_inner);
    SourceConfig {
        size: size(table),
        flows: table.number("flows", 1..=1 << 24).map_or(default.flows, Spanned::into_inner),
        burst: burst(table, rate.is_some()).unwrap_or(default.burst),
        rate,
        lossless: table.flag("lossless").unwrap_or(default.lossless),
        count: table.number("count", 1..=most).map(Spanned::into_inner),
    }
}

fn burst(table: &Reader<'_>, has_rate: bool) -> Option<u16> {
    let burst = table.number("burst", 1..=u64::from(u16::MAX))?;
    if !has_rate {
        table
            .bad_value("burst", burst.span(), "is of no use without `rate`")
            .help("give the source a `rate`, or leave `burst` out: flat out, packets come as fast as they are taken")
            .keep();
    }
    Some(burst.into_inner())
}

fn queues(table: &Reader<'_>, form: Option<Form>) -> u16 {
    let Some(queues) = table.number("queues", 1..=MAX_QUEUES) else { return 1 };
    if form == Some(Form::Pcap) && *queues.get_ref() > 1 {
        table
            .bad_value("queues", queues.span(), &format!("is {} for a capture", queues.get_ref()))
            .help("a capture is read and written by one worker, so that its packets keep their order: leave `queues` out")
            .keep();
    }
    queues.into_inner()
}

/// The MTU; by default Ethernet's, or what frames of `size` need.
fn mtu(table: &Reader<'_>, size: u16) -> Spanned<u16> {
    let needed = size.saturating_sub(HEADER);
    let mtu = table.number("mtu", 68..=MAX_FRAME - u64::from(HEADER));
    if let Some(given) = mtu.as_ref().filter(|given| *given.get_ref() < needed) {
        table
            .bad_value(
                "mtu",
                given.span(),
                &format!("is {}, but frames are {size} bytes long", given.get_ref()),
            )
            .help(format!(
                "frames of {size} bytes need an MTU of {needed}: they have {HEADER} bytes of header"
            ))
            .keep();
    }
    mtu.unwrap_or_else(|| at(table.span.clone(), DEFAULT_MTU.max(needed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_completed() {
        for (text, expected) in [
            ("0000:3b:00.0", Some("0000:3b:00.0")),
            ("3B:1f.7", Some("0000:3b:1f.7")),
            ("3b:20.0", None),
            ("3b:00.8", None),
            ("3b:00", None),
            ("1:0000:3b:00.0", None),
            ("+b:00.0", None),
            ("", None),
        ] {
            assert_eq!(full_address(text).as_deref(), expected, "{text}");
        }
    }
}
