// SPDX-License-Identifier: Apache-2.0
//! What each request of Docker does. Requests may come twice, or after a restart of Docker, netvmd or this program.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netvm_api::{AddPort, Client, ClientError, RemovePort};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::messages::{EndpointRequest, NetworkRequest, PortMapping};
use super::port;
use super::state::{Endpoint, Joined, Network, State};
use crate::error::DockerError;

/// Where Docker puts the options of a driver,
const GENERIC: &str = "com.docker.network.generic";
/// whether a network has no gateway,
const INTERNAL: &str = "com.docker.network.internal";
/// and the ports that a container publishes.
const PORT_MAP: &str = "com.docker.network.portmap";

/// The driver.
#[derive(Debug)]
pub struct Driver {
    client: Client,
    state: State,
}

impl Driver {
    pub const fn new(client: Client, state: State) -> Self {
        Self { client, state }
    }

    /// Answers a request.
    pub async fn handle(&mut self, path: &str, body: &[u8]) -> Result<Value, DockerError> {
        let request = path.trim_start_matches('/');
        match request {
            "Plugin.Activate" => return Ok(json!({ "Implements": ["NetworkDriver"] })),
            "NetworkDriver.GetCapabilities" => {
                return Ok(json!({ "Scope": "local", "ConnectivityScope": "local" }));
            }
            "NetworkDriver.CreateNetwork" => self.create_network(&read(request, body)?)?,
            "NetworkDriver.DeleteNetwork" => self.delete_network(&read(request, body)?).await?,
            "NetworkDriver.CreateEndpoint" => {
                self.create_endpoint(read(request, body)?)?;
                return Ok(json!({ "Interface": {} }));
            }
            "NetworkDriver.DeleteEndpoint" => self.delete_endpoint(&read(request, body)?).await?,
            "NetworkDriver.EndpointOperInfo" => return Ok(json!({ "Value": {} })),
            "NetworkDriver.Join" => {
                self.join(read(request, body)?).await?;
                // netvmd makes the interface in the namespace, with addresses and routes.
                return Ok(json!({ "DisableGatewayService": true }));
            }
            "NetworkDriver.Leave" => self.leave(&read::<EndpointRequest>(request, body)?.endpoint).await?,
            "NetworkDriver.ProgramExternalConnectivity" => self.publish(read(request, body)?, true).await?,
            "NetworkDriver.RevokeExternalConnectivity" => self.publish(read(request, body)?, false).await?,
            // Other hosts of a swarm, of which this driver knows nothing.
            "NetworkDriver.DiscoverNew" | "NetworkDriver.DiscoverDelete" => {}
            other => return Ok(json!({ "Err": format!("netvm docker does not know {other}") })),
        }
        Ok(json!({}))
    }

    fn create_network(&self, request: &NetworkRequest) -> Result<(), DockerError> {
        let generic = request.options.get(GENERIC).and_then(Value::as_object).cloned().unwrap_or_default();
        let options = texts(generic.into_iter().collect());
        let is_internal = request.options.get(INTERNAL).is_some_and(|value| value.as_bool() == Some(true));
        let pools = [&request.v4, &request.v6].into_iter().flatten().flatten();
        let gateways = pools.map(|pool| port::bare(&pool.gateway).to_owned());
        let is_address = |text: &String| !is_internal && text.parse::<IpAddr>().is_ok();
        let gateways = gateways.filter(is_address).collect();
        self.state.set_network(&request.network, &Network { options, gateways })
    }

    async fn delete_network(&self, request: &NetworkRequest) -> Result<(), DockerError> {
        for (id, _) in self.state.endpoints().into_iter().filter(|(_, one)| one.network == request.network) {
            self.leave(&id).await?;
            self.state.remove_endpoint(&id)?;
        }
        self.state.remove_network(&request.network)
    }

    fn create_endpoint(&self, request: EndpointRequest) -> Result<(), DockerError> {
        self.state.network(&request.network)?;
        let options = request.options.unwrap_or_default();
        let endpoint = Endpoint {
            network: request.network,
            addresses: request.interface.unwrap_or_default(),
            publish: published(&options),
            options: texts(options),
            names: BTreeMap::new(),
            joined: None,
        };
        self.state.set_endpoint(&request.endpoint, &endpoint)
    }

    async fn delete_endpoint(&self, request: &EndpointRequest) -> Result<(), DockerError> {
        self.leave(&request.endpoint).await?;
        self.state.remove_endpoint(&request.endpoint)
    }

    async fn join(&self, request: EndpointRequest) -> Result<(), DockerError> {
        let mut endpoint = self.state.endpoint(&request.endpoint)?;
        let network = self.state.network(&endpoint.network)?;
        endpoint.options.extend(texts(request.options.unwrap_or_default()));
        let interface = match port::option(&network, &endpoint, "interface") {
            Some(interface) => interface.to_owned(),
            None => {
                let is_beside = |(id, other): &(String, Endpoint)| {
                    let namespace = other.joined.as_ref().map(|joined| joined.namespace.as_str());
                    *id != request.endpoint && namespace == Some(request.sandbox.as_str())
                };
                format!("eth{}", self.state.endpoints().iter().filter(|one| is_beside(one)).count())
            }
        };
        endpoint.joined = Some(Joined { namespace: request.sandbox, interface });
        endpoint.names.clear();
        self.state.set_endpoint(&request.endpoint, &endpoint)?;
        let added = self.add(&request.endpoint, &network, &endpoint).await;
        if added.is_err() {
            // Docker asks no more for this one.
            self.leave(&request.endpoint).await?;
        }
        added
    }

    /// The endpoints whose containers have no names yet, and their networks.
    pub fn unnamed(&self) -> Vec<(String, String)> {
        let endpoints = self.state.endpoints().into_iter();
        let unnamed = endpoints.filter(|(_, one)| one.joined.is_some() && one.names.is_empty());
        unnamed.map(|(id, one)| (id, one.network)).collect()
    }

    /// Gives an endpoint's port the labels of its container.
    pub async fn name(&self, id: &str, names: &BTreeMap<String, String>) -> Result<(), DockerError> {
        let mut endpoint = self.state.endpoint(id)?;
        endpoint.names.clone_from(names);
        let network = self.state.network(&endpoint.network)?;
        self.add(id, &network, &endpoint).await?;
        self.state.set_endpoint(id, &endpoint)
    }

    /// Adds the port of an endpoint that a container has joined, or changes it.
    async fn add(&self, id: &str, network: &Network, endpoint: &Endpoint) -> Result<(), DockerError> {
        let Some(joined) = &endpoint.joined else { return Ok(()) };
        let toml = port::toml(id, network, endpoint, joined)?;
        let lease = self.state.set_lease(id)?;
        let owner = owner(&endpoint.network);
        self.client.add_port(&AddPort { owner, id: id.to_owned(), toml, lease: Some(lease) }).await?;
        Ok(())
    }

    /// Removes the port of an endpoint. If netvmd does not run, it removes the port when it starts, as there is no
    /// lease.
    async fn leave(&self, id: &str) -> Result<(), DockerError> {
        let mut endpoint = match self.state.endpoint(id) {
            Err(DockerError::Unknown { .. }) => return Ok(()),
            endpoint => endpoint?,
        };
        self.state.end_lease(id)?;
        let which = RemovePort { owner: owner(&endpoint.network), id: id.to_owned() };
        match self.client.remove_port(&which).await {
            Ok(_) | Err(ClientError::Refused { status: 404, .. } | ClientError::NotRunning { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        endpoint.joined = None;
        self.state.set_endpoint(id, &endpoint)
    }

    /// Publishes the ports of a container, or no longer: Docker says it of the network that has the container's
    /// gateway.
    async fn publish(&self, request: EndpointRequest, is_on: bool) -> Result<(), DockerError> {
        let mut endpoint = match self.state.endpoint(&request.endpoint) {
            Err(DockerError::Unknown { .. }) if !is_on => return Ok(()),
            endpoint => endpoint?,
        };
        let publish = if is_on { published(&request.options.unwrap_or_default()) } else { Vec::new() };
        if publish == endpoint.publish {
            return Ok(());
        }
        endpoint.publish = publish;
        self.state.set_endpoint(&request.endpoint, &endpoint)?;
        let network = self.state.network(&endpoint.network)?;
        match self.add(&request.endpoint, &network, &endpoint).await {
            // The container ends: its port goes with it.
            Err(DockerError::Client(ClientError::NotRunning { .. })) if !is_on => Ok(()),
            added => added,
        }
    }
}

/// Whose ports those of a network are.
fn owner(network: &str) -> String {
    format!("docker/{}", network.chars().take(12).collect::<String>())
}

fn read<T: DeserializeOwned>(request: &str, body: &[u8]) -> Result<T, DockerError> {
    serde_json::from_slice(body)
        .map_err(|source| DockerError::Request { request: request.to_owned(), source })
}

/// The options that are texts.
fn texts(options: BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let text = |(key, value): (String, Value)| Some((key, value.as_str()?.to_owned()));
    options.into_iter().filter_map(text).collect()
}

fn published(options: &BTreeMap<String, Value>) -> Vec<String> {
    let mappings = options.get(PORT_MAP).cloned().unwrap_or_default();
    let mappings: Vec<PortMapping> = serde_json::from_value(mappings).unwrap_or_default();
    mappings.iter().filter_map(port::published).collect()
}
