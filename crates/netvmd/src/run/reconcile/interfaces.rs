// SPDX-License-Identifier: Apache-2.0
//! Follows the interfaces of ports: reports when a link or an interface goes away or comes back, closes a port whose
//! interface is gone, opens closed ports when what they lack is there, and passes carriers on to the interfaces of
//! routers. Keeps the names of routers' namespaces.
//!
//! An event of netlink or inotify only starts a comparison of all interfaces with their desired state, so a lost event
//! has no lasting effect.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::EventKind;
use netvm_engine::{Engine, InterfaceState, PortView};
use netvm_model::{Host, PortId};
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::closed_ports::{ClosedPorts, folders, has_lost_interface};
use super::folders::Folders;
use crate::daemon::Daemon;
use crate::engine_thread::EngineGone;
use netvm_vnet::{LinkEvent, LinkEvents};

/// Most datagrams to read at once.
const MAX_DATAGRAMS: usize = 256;
/// Pause after an event, because events come in groups.
const EVENT_DELAY: Duration = Duration::from_millis(20);
/// The pause is at least this multiple of the duration of a comparison: each container that comes or goes makes events.
const EVENT_IDLE_FACTOR: u32 = 5;
/// Limit for the pause.
const MAX_EVENT_DELAY: Duration = Duration::from_millis(200);
/// Interval of comparisons without an event: for guests, NICs and processes, which send none.
const INTERVAL: Duration = Duration::from_secs(1);
/// The interval is at least this multiple of the duration of a comparison, which is long if there are many ports.
const MIN_IDLE_FACTOR: u32 = 100;
/// Limit for the interval.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// The state of a port in the last log line about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Logged {
    has_link: bool,
    /// The interface's MTU, if it is smaller than the port's.
    narrow: Option<u32>,
}

/// Follows the interfaces until the future is dropped.
pub(super) async fn follow(daemon: &Daemon) {
    let mut known = Known::default();
    let no_files = |error: &io::Error| {
        tracing::warn!("cannot watch for namespaces by inotify: {error}; looking for them every 1 to 10 s");
    };
    let no_events = |error: &io::Error| {
        tracing::warn!("cannot follow interfaces by netlink: {error}; checking them every 1 to 10 s");
    };
    let mut files = Folders::new().inspect_err(no_files).ok();
    let mut events = events().inspect_err(no_events).ok();
    loop {
        let began = Instant::now();
        match compare(daemon, &mut known).await {
            Ok(Some(host)) => files.iter_mut().for_each(|files| files.watch(&folders(&host))),
            Ok(None) => {}
            // The engine has ended, and the daemon ends with it.
            Err(EngineGone) => return std::future::pending().await,
        }
        let took = began.elapsed();
        let interval = (took * MIN_IDLE_FACTOR).clamp(INTERVAL, MAX_INTERVAL);
        let delay = (took * EVENT_IDLE_FACTOR).clamp(EVENT_DELAY, MAX_EVENT_DELAY);
        tokio::select! {
            () = sleep(interval) => {}
            () = next(&mut events, &mut known.changed) => sleep(delay).await,
            () = changed(&mut files) => sleep(delay).await,
        }
    }
}

fn events() -> io::Result<AsyncFd<LinkEvents>> {
    // SAFETY: `LinkEvents` names the same open descriptor for its whole life.
    unsafe { AsyncFd::register(LinkEvents::open()?) }.map_err(Into::into)
}

/// Waits for events, and adds the interfaces that came up to `changed`. Waits forever without a socket.
async fn next(events: &mut Option<AsyncFd<LinkEvents>>, changed: &mut Vec<LinkEvent>) {
    let Some(socket) = events else { return std::future::pending().await };
    let Ok(mut ready) = socket.readable_mut().await else { return std::future::pending().await };
    let note = |event: LinkEvent| {
        if event.is_up && !changed.contains(&event) {
            changed.push(event);
        }
    };
    match ready.get_inner_mut().read(MAX_DATAGRAMS, note) {
        // The comparison covers all interfaces whose events were lost, except for addresses.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
        Err(error) => {
            tracing::warn!("cannot read netlink events: {error}; checking interfaces every 1 to 10 s");
            *events = None;
        }
    }
}

/// Waits until files appear or go; forever without inotify.
async fn changed(files: &mut Option<Folders>) {
    match files {
        Some(files) => files.changed().await,
        None => std::future::pending().await,
    }
}

/// What is known of the ports between comparisons.
#[derive(Debug, Default)]
struct Known {
    logged: BTreeMap<PortId, Logged>,
    closed: ClosedPorts,
    /// Interfaces that came up since the last comparison, in this namespace and in containers'.
    changed: Vec<LinkEvent>,
}

/// Returns the configuration, unless an apply is in progress.
async fn compare(daemon: &Daemon, known: &mut Known) -> Result<Option<Arc<Host>>, EngineGone> {
    // An apply opens and closes ports itself. An apply may start during the comparison: the engine reopens ports in one
    // step, by the configuration that it has at that time.
    if daemon.try_change().is_none() {
        return Ok(None);
    }
    let read = |engine: &mut Engine| {
        let ports = engine.ports();
        engine.follow_mtus(&ports);
        (engine.shared_host(), ports)
    };
    let changed = std::mem::take(&mut known.changed);
    if !changed.is_empty() {
        daemon.engine().call(move |engine| engine.restore_addresses(&changed)).await?;
    }
    let (host, ports) = daemon.engine().call(read).await?;
    let lost = known.closed.due(&host, &ports, Instant::now());
    let was_open = |id| ports.iter().any(|port| port.id == id && port.is_open);
    let (host, ports) = if lost.is_empty() {
        (host, ports)
    } else {
        if lost.iter().any(|port| host.punted_by(*port).is_some())
            && let Err(error) = daemon.routers().make(&host).await
        {
            tracing::debug!("cannot recreate interfaces of routers: {error}");
        }
        let again = lost.clone();
        daemon.engine().call(move |engine| engine.reopen(&again)).await?;
        let (host, now) = daemon.engine().call(read).await?;
        let is_back = |port: &&PortView| port.is_open && !has_lost_interface(port);
        for port in now.iter().filter(|port| lost.contains(&port.id)).filter(is_back) {
            let name = host.port(port.id).map_or("", |config| config.name.as_str());
            let message = match was_open(port.id) {
                true => format!("port {name}: reopened, because its interface was created again"),
                false => format!("port {name}: opened, as what it lacked is there now"),
            };
            daemon.engine().events().push(EventKind::PortReopened, name, message);
        }
        (host, now)
    };
    daemon.routers().set_carriers(carriers(&host, &ports)).await;
    daemon.routers().follow_mtus(&host, mtus(&ports)).await;
    daemon.routers().keep_names().await;
    known.logged.retain(|id, _| host.port(*id).is_some());
    for port in &ports {
        log_changes(daemon, &host, port, &mut known.logged);
    }
    Ok(Some(host))
}

/// The outer ends of routers' interfaces, and whether their ports have a link.
fn carriers(host: &Host, ports: &[PortView]) -> Vec<(String, bool)> {
    let has_link =
        |id: PortId| ports.iter().find(|port| port.id == id).and_then(|port| port.link) != Some(false);
    let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
    interfaces.map(|interface| (interface.host_end.clone(), has_link(interface.port))).collect()
}

/// The MTUs of the ports' interfaces.
fn mtus(ports: &[PortView]) -> BTreeMap<PortId, u32> {
    let mtu = |port: &PortView| Some((port.id, port.interface.as_ref()?.mtu?));
    ports.iter().filter_map(mtu).collect()
}

/// Logs what has changed.
fn log_changes(daemon: &Daemon, host: &Host, port: &PortView, logged: &mut BTreeMap<PortId, Logged>) {
    // A router's punt port has the link of the router's port.
    let (Some(config), None) = (host.port(port.id), host.punted_by(port.id)) else { return };
    let name = &config.name;
    let interface = port.interface.as_ref();
    let mtu = interface.and_then(|interface| interface.mtu);
    let now =
        Logged { has_link: port.link != Some(false), narrow: mtu.filter(|mtu| *mtu < config.mtu.into()) };
    // Why a port is closed from the beginning, the engine has reported.
    let before = logged.insert(port.id, now).unwrap_or(Logged { has_link: port.is_open, narrow: None });
    let of = interface.map_or_else(String::new, |interface| format!(" (interface {})", interface.name));
    let is_gone = port.is_open && interface.is_some_and(|it| it.state == InterfaceState::Gone);
    let push =
        |kind, message: String| daemon.engine().events().push(kind, name, format!("port {name}: {message}"));
    match (before.has_link, now.has_link) {
        (true, false) if is_gone => push(
            EventKind::LinkDown,
            format!("its interface is gone{of}; the port is reopened when the interface is back"),
        ),
        // The engine has reported why.
        (true, false) if !port.is_open => {
            push(EventKind::LinkDown, format!("link down, as the port is closed{of}"));
        }
        (true, false) => push(EventKind::LinkDown, format!("link down{of}")),
        (false, true) => push(EventKind::LinkUp, format!("link up{of}")),
        _ => {}
    }
    if let Some(mtu) = now.narrow.filter(|_| now != before) {
        tracing::warn!(
            "port {name}: its MTU is {}, but that of its interface{of} {mtu}: longer packets are dropped, or \
             fragmented by virtual routers",
            config.mtu
        );
    }
}
