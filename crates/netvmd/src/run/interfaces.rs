//! Follows the interfaces of ports: reports when a link or an interface goes away or comes back, reopens a port when its
//! interface exists again, and passes carriers on to the interfaces of routers. Keeps the names of routers' namespaces.
//!
//! A netlink event only starts a comparison of all interfaces with their desired state, so a lost event has no lasting
//! effect.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use netvm_api::EventKind;
use netvm_config::model::{Host, PortId};
use netvm_engine::{Engine, InterfaceState, PortView};
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use crate::daemon::Daemon;
use crate::engine_thread::EngineGone;
use netvm_netlink::{Events, ReadOutcome};

/// `RTMGRP_LINK`.
const LINKS: u32 = 1;
/// Most datagrams to read at once.
const MOST: usize = 256;
/// Pause after an event, because events come in groups.
const SETTLING: Duration = Duration::from_millis(20);
/// Interval of comparisons without an event: for guests and NICs, which send none, and ports that do not open yet.
const INTERVAL: Duration = Duration::from_secs(1);
/// The interval is at least this multiple of the duration of a comparison, which is long if there are many ports.
const REST: u32 = 100;
/// Limit for the interval.
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

/// The state of a port in the last log line about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Logged {
    has_link: bool,
    /// The interface's MTU, if it is smaller than the port's.
    narrow: Option<u32>,
}

/// Follows the interfaces until the future is dropped.
pub(crate) async fn follow(daemon: &Daemon) {
    let mut logged = BTreeMap::new();
    let mut events = match events() {
        Ok(events) => Some(events),
        Err(error) => {
            tracing::warn!("cannot follow interfaces by netlink: {error}; checking them every 1 to 10 s");
            None
        }
    };
    loop {
        let began = Instant::now();
        if compare(daemon, &mut logged).await.is_err() {
            // The engine has ended, and the daemon ends with it.
            return std::future::pending().await;
        }
        let interval = (began.elapsed() * REST).clamp(INTERVAL, LONGEST_INTERVAL);
        tokio::select! {
            () = sleep(interval) => {}
            () = next(&mut events) => sleep(SETTLING).await,
        }
    }
}

fn events() -> io::Result<AsyncFd<Events>> {
    // SAFETY: `Events` names the same open descriptor for its whole life.
    unsafe { AsyncFd::register(Events::open(LINKS)?) }.map_err(Into::into)
}

/// Waits for an event; forever without a socket.
async fn next(events: &mut Option<AsyncFd<Events>>) {
    let Some(socket) = events else { return std::future::pending().await };
    let Ok(mut ready) = socket.readable_mut().await else { return std::future::pending().await };
    match ready.get_inner_mut().read(MOST, |_| ()) {
        Ok(ReadOutcome::All) => ready.clear_ready(),
        // Lost events do not matter: the comparison covers all interfaces.
        Ok(ReadOutcome::More | ReadOutcome::Lost) => {}
        Err(error) => {
            tracing::warn!("cannot read netlink events: {error}; checking interfaces every 1 to 10 s");
            *events = None;
        }
    }
}

async fn compare(daemon: &Daemon, logged: &mut BTreeMap<PortId, Logged>) -> Result<(), EngineGone> {
    // An apply opens and closes ports itself. An apply may start during the comparison: the engine reopens ports in one step,
    // by the configuration that it has at that time.
    if daemon.changing.try_lock().is_err() {
        return Ok(());
    }
    let read = |engine: &mut Engine| {
        let ports = engine.ports();
        engine.follow_mtus(&ports);
        (engine.shared_host(), ports)
    };
    let (host, ports) = daemon.engine.call(read).await?;
    let lost: Vec<PortId> = ports.iter().filter(|port| is_lost(port)).map(|port| port.id).collect();
    let (host, ports) = if lost.is_empty() {
        (host, ports)
    } else {
        if lost.iter().any(|port| host.punted_by(*port).is_some())
            && let Err(error) = daemon.routers.make(&host).await
        {
            tracing::debug!("cannot recreate interfaces of routers: {error}");
        }
        let again = lost.clone();
        daemon.engine.call(move |engine| engine.reopen(&again)).await?;
        let (host, ports) = daemon.engine.call(read).await?;
        for port in ports.iter().filter(|port| lost.contains(&port.id) && !is_lost(port)) {
            let name = host.port(port.id).map_or("", |config| config.name.as_str());
            let message = format!("port {name}: reopened, because its interface was created again");
            daemon.engine.events().push(EventKind::PortReopened, name, message);
        }
        (host, ports)
    };
    daemon.routers.set_carriers(carriers(&host, &ports)).await;
    daemon.routers.follow_mtus(&host, mtus(&ports)).await;
    daemon.routers.keep_names().await;
    let down: BTreeSet<PortId> =
        ports.iter().filter(|port| port.link == Some(false)).map(|port| port.id).collect();
    logged.retain(|id, _| host.port(*id).is_some());
    for port in &ports {
        log_changes(daemon, &host, (port, down.contains(&port.id)), logged);
    }
    Ok(())
}

/// Whether a port must be reopened: it is closed, or its interface was replaced. TAP ports create their own interface.
fn is_lost(port: &PortView) -> bool {
    let Some(interface) = &port.interface else { return false };
    match interface.state {
        InterfaceState::Same => false,
        InterfaceState::Replaced => true,
        InterfaceState::Gone => port.driver.starts_with("TAP") || port.driver == "closed",
    }
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
fn log_changes(
    daemon: &Daemon,
    host: &Host,
    (port, is_down): (&PortView, bool),
    logged: &mut BTreeMap<PortId, Logged>,
) {
    // A router's punt port has the link of the router's port.
    let (Some(config), None) = (host.port(port.id), host.punted_by(port.id)) else { return };
    let name = &config.name;
    let mtu = port.interface.as_ref().and_then(|interface| interface.mtu);
    let now = Logged { has_link: !is_down, narrow: mtu.filter(|mtu| *mtu < config.mtu.into()) };
    let before = logged.insert(port.id, now).unwrap_or(Logged { has_link: true, narrow: None });
    let of = port
        .interface
        .as_ref()
        .map_or_else(String::new, |interface| format!(" (interface {})", interface.name));
    let is_gone = port.interface.as_ref().is_some_and(|interface| interface.state == InterfaceState::Gone);
    match (before.has_link, now.has_link) {
        (true, false) if is_gone => {
            let message = format!(
                "port {name}: its interface is gone{of}; the port is reopened when the interface is back"
            );
            daemon.engine.events().push(EventKind::LinkDown, name, message);
        }
        (true, false) => {
            daemon.engine.events().push(EventKind::LinkDown, name, format!("port {name}: link down{of}"));
        }
        (false, true) => {
            daemon.engine.events().push(EventKind::LinkUp, name, format!("port {name}: link up{of}"));
        }
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
