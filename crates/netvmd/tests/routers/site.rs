// SPDX-License-Identifier: Apache-2.0
//! Sites: a router between two networks with a host each.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use netvm_api::{RouterInfo, RouterRoutes, path};

use super::common::hosts::{self, Host, run};
use super::common::{ADAPTIVE, Daemon, EngineText, Folder, engine};

/// A router between two networks with a host each.
pub struct Site {
    /// Name of the router.
    pub router: String,
    pub client: Host,
    pub server: Host,
}

impl Site {
    pub fn new(name: &str) -> Self {
        Self {
            router: format!("{name}{}", std::process::id()),
            client: Host::new(
                &format!("{name}c"),
                &["10.1.0.2/24", "2001:db8:1::2/64"],
                &["10.1.0.1", "2001:db8:1::1"],
            ),
            server: Host::new(
                &format!("{name}s"),
                &["10.2.0.2/16", "2001:db8:2::2/64"],
                &["10.2.0.1", "2001:db8:2::1"],
            ),
        }
    }

    /// Ports and router. `lan`: further addresses of the router's first interface, as TOML lines.
    pub fn config(&self) -> String {
        let mut text = String::new();
        for (side, host) in [("lan", &self.client), ("wan", &self.server)] {
            write!(
                text,
                "\n[[port]]\nname = \"{router}-{side}\"\nkind = \"af_xdp\"\ninterface = \"{}\"\n\
                 forward = {{ router = \"{router}\" }}\n",
                host.port(),
                router = self.router,
            )
            .unwrap();
        }
        write!(
            text,
            "\n[[router]]\nname = \"{router}\"\n\
             \n[[router.interface]]\nname = \"lan\"\nport = \"{router}-lan\"\n\
             addresses = [\"10.1.0.1/24\", \"2001:db8:1::1/64\"]\n\
             \n[[router.interface]]\nname = \"wan\"\nport = \"{router}-wan\"\npunt_rate = 2000\n\
             addresses = [\"10.2.0.1/16\", \"2001:db8:2::1/64\"]\n",
            router = self.router,
        )
        .unwrap();
        text
    }

    pub fn namespace(&self) -> String {
        format!("netvm-{}", self.router)
    }

    pub fn ip(&self, words: &str) {
        run(&format!("ip -n {} {words}", self.namespace()));
    }

    pub fn routes(&self, daemon: &Daemon) -> RouterRoutes {
        daemon.get(&path::ROUTES.replace("{router}", &self.router))
    }

    pub fn punted(&self, daemon: &Daemon) -> u64 {
        let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
        let own = routers.iter().find(|router| router.name == self.router).unwrap();
        own.interfaces.iter().map(|interface| interface.punted).sum()
    }
}

impl Drop for Site {
    /// Cleans up after a failed test whose netvmd was killed.
    fn drop(&mut self) {
        let namespace = self.namespace();
        if Path::new("/run/netns").join(&namespace).exists() {
            let _ = hosts::succeeds(&format!("ip netns delete {namespace}"));
        }
    }
}

pub static ENGINE: EngineText = EngineText(LazyLock::new(|| engine(ADAPTIVE)));

pub fn start(sites: &[&Site]) -> Daemon {
    start_in(Arc::new(Folder::new()), sites)
}

pub fn start_in(folder: Arc<Folder>, sites: &[&Site]) -> Daemon {
    let text = sites.iter().fold(ENGINE.to_owned(), |text, site| text + &site.config());
    Daemon::start_in(folder, &text)
}

/// Pings until the engine forwards in each of its routers. The kernel does until the engine has the routes by the
/// neighbours that the first ping made known.
pub fn until_forwarded(daemon: &Daemon, from: &Host, to: &str) {
    daemon.until("the engine forwards", |daemon| {
        assert!(from.pings(to), "{}", daemon.log());
        let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
        routers.iter().all(|router| router.forwarded > 0)
    });
}
