// SPDX-License-Identifier: Apache-2.0
//! The commands of the specification. Each may be repeated, and goes on where a killed one has stopped.
//!
//! | step of ADD | what a kill after it leaves | who takes it away |
//! |---|---|---|
//! | the record | a file | the next ADD, DEL or GC |
//! | the IPAM plug-in gives addresses | the file, and addresses | the same: they ask the plug-in to take back what it gave |
//! | netvmd adds the port | the file, addresses, a port whose owner is the network | the same |
//!
//! The file is also the lease of the port: a netvmd that starts removes ports whose file is gone.

use netvm_api::{AddPort, Client, ClientError, LivePortInfo, RemovePort};
use serde_json::Value;

use crate::config::{Attachment, Config, Environment, Kind};
use crate::error::{CniError, Code};
use crate::record::{self, Record};
use crate::{ipam, port, result};

/// A command for one network.
#[derive(Debug)]
pub struct Command {
    pub client: Client,
    pub config: Config,
    pub environment: Environment,
}

impl Command {
    /// What its owner knows a port by.
    fn id(&self) -> String {
        format!("{}/{}", self.environment.container, self.environment.interface)
    }

    /// Connects the container. The result of the specification.
    pub async fn add(&self) -> Result<Value, CniError> {
        let Self { client, config, environment } = self;
        environment.check(true)?;
        let namespace = environment.namespace.clone();
        if !std::path::Path::new(&namespace).exists() {
            let message = format!("CNI_NETNS {namespace} does not exist: the container has ended");
            return Err(CniError::new(Code::InvalidEnvironment, message));
        }
        // Without it, nothing could be undone.
        ipam::find(config, environment)?;
        let mut _lock = record::lock(config, environment).await?;
        let known = record::read(config, environment);
        let given = match known {
            Some(Record { namespace: before, given: Some(given) }) if before == namespace => given,
            known => {
                if known.is_some() {
                    // An ADD was killed, or the container has another namespace now.
                    self.take_back().await?;
                    // It went with the record.
                    _lock = record::lock(config, environment).await?;
                }
                record::write(config, environment, &Record { namespace: namespace.clone(), given: None })?;
                let given = match ipam::add(config, environment).await {
                    Ok(given) => given,
                    Err(error) => return Err(self.undone(error).await),
                };
                let whole = Record { namespace, given: Some(given.clone()) };
                if let Err(error) = record::write(config, environment, &whole) {
                    return Err(self.undone(error).await);
                }
                given
            }
        };
        let added = async {
            let toml = port::toml(config, environment, &given)?;
            let lease = Some(record::lease(config, environment)?);
            let port = AddPort { owner: config.owner(), id: self.id(), toml, lease };
            let port = client.add_port(&port).await?.port;
            match port.problem {
                None => Ok(port.mac),
                Some(why) => Err(CniError::new(Code::Io, format!("port {}: {why}", port.port))),
            }
        };
        match added.await {
            Ok(mac) => Ok(result::of(config, environment, mac.as_deref(), &given)),
            Err(error) => Err(self.undone(error).await),
        }
    }

    /// Undoes an ADD that failed. The error, with what could not be undone.
    async fn undone(&self, error: CniError) -> CniError {
        match self.take_back().await {
            Ok(()) => error,
            Err(undo) => {
                CniError { details: format!("{}\nDEL will undo it: {undo}", error.details), ..error }
            }
        }
    }

    /// Disconnects the container, whatever is left of its network. `CNI_NETNS` may be empty, and is not used.
    pub async fn delete(&self) -> Result<(), CniError> {
        self.environment.check(false)?;
        let _lock = record::lock(&self.config, &self.environment).await?;
        self.take_back().await
    }

    /// Removes port, addresses and record, in this order: the port must not keep an address that another gets. If
    /// netvmd does not run, nobody else can get the address, and netvmd removes the port when it starts: the record is
    /// the port's lease.
    async fn take_back(&self) -> Result<(), CniError> {
        let Self { config, environment, .. } = self;
        let has_port_gone = self.remove_port().await?;
        ipam::delete(config, environment).await?;
        record::remove(config, environment)?;
        if !has_port_gone {
            // A netvmd that has started meanwhile may have seen the record.
            self.remove_port().await?;
        }
        record::unlock(config, environment)
    }

    /// Removes the port; `false`: netvmd does not run.
    async fn remove_port(&self) -> Result<bool, CniError> {
        let which = RemovePort { owner: self.config.owner(), id: self.id() };
        match self.client.remove_port(&which).await {
            Ok(_) | Err(ClientError::Refused { status: 404, .. }) => Ok(true),
            Err(ClientError::NotRunning { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the container's network is as ADD has made it.
    pub async fn check(&self) -> Result<(), CniError> {
        let Self { client, config, environment } = self;
        environment.check(true)?;
        let Some(previous) = &config.previous else {
            return Err(CniError::new(Code::InvalidConfig, "CHECK needs `prevResult`, the result of ADD"));
        };
        let not_so = |what: String| Err(CniError::new(Code::NotAsExpected, what));
        let ports = client.live_ports().await?;
        let (owner, id) = (config.owner(), self.id());
        let Some(port) = ports.into_iter().find(|port| port.owner == owner && port.id == id) else {
            return not_so(format!("netvmd has no port for {id}: it was removed, or never added"));
        };
        if let Some(why) = port.problem {
            return not_so(format!("port {}: {why}", port.port));
        }
        let text =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let interfaces = previous.get("interfaces").and_then(Value::as_array).cloned().unwrap_or_default();
        let own = interfaces.iter().position(|interface| {
            text(interface, "name") == environment.interface && !text(interface, "sandbox").is_empty()
        });
        let Some(own) = own else {
            return not_so(format!("`prevResult` has no interface {}", environment.interface));
        };
        let mac = text(&interfaces[own], "mac");
        if !mac.is_empty() && port.mac.as_ref().is_some_and(|now| !now.eq_ignore_ascii_case(&mac)) {
            return not_so(format!(
                "{} had {mac}, and has {} now",
                environment.interface,
                port.mac.unwrap_or_default()
            ));
        }
        let ips = previous.get("ips").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_own = |ip: &&Value| ip.get("interface").and_then(Value::as_u64) == Some(own as u64);
        // A port with a socket has no addresses of its own.
        let has_addresses = config.kind == Kind::Container;
        for ip in ips.iter().filter(is_own).filter(|_| has_addresses) {
            let address = text(ip, "address");
            if !port.toml.contains(&format!("\"{address}\"")) {
                return not_so(format!("port {} has no longer the address {address}", port.port));
            }
        }
        ipam::check(config, environment).await
    }

    /// Whether netvmd can add ports now, and the IPAM plug-in can give addresses.
    pub async fn status(&self) -> Result<(), CniError> {
        self.client.status().await?;
        ipam::status(&self.config, &self.environment).await
    }

    /// Removes the attachments of this network that the runtime does not know, and what killed commands have left.
    pub async fn collect_garbage(&self) -> Result<(), CniError> {
        let owner = self.config.owner();
        let ports = self.client.live_ports().await?;
        let of_port = |port: LivePortInfo| {
            let (container, interface) = port.id.split_once('/')?;
            let ours = port.owner == owner;
            ours.then(|| Attachment { container: container.to_owned(), interface: interface.to_owned() })
        };
        let mut all: Vec<Attachment> = ports.into_iter().filter_map(of_port).collect();
        all.extend(
            record::all(&self.config).into_iter().filter(|one| !all.contains(one)).collect::<Vec<_>>(),
        );
        // What the plug-in knows, and no record does.
        let mut failed = ipam::collect_garbage(&self.config, &self.environment).await;
        for stale in all.into_iter().filter(|one| !self.config.valid.contains(one)) {
            let Attachment { container, interface } = stale;
            let environment =
                Environment { container, interface, namespace: String::new(), ..self.environment.clone() };
            let one = Self { client: self.client.clone(), config: self.config.clone(), environment };
            // One that cannot be removed must not keep the others.
            if let Err(error) = one.delete().await {
                failed = Err(error);
            }
        }
        failed
    }
}
