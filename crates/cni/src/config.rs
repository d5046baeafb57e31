// SPDX-License-Identifier: Apache-2.0
//! What the runtime gives: the environment, and the network's configuration on standard input.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{CniError, Code};

/// The versions of the specification that this program speaks, the last one first.
pub const VERSIONS: [&str; 5] = ["1.1.0", "1.0.0", "0.4.0", "0.3.1", "0.3.0"];

/// Where records of attachments are, unless the configuration says it.
const DATA_FOLDER: &str = "/var/lib/cni/netvm";
/// Most bytes of a configuration.
pub const MAX_CONFIG: u64 = 1 << 20;

/// The environment of a command.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub command: String,
    pub container: String,
    pub namespace: String,
    pub interface: String,
    pub arguments: Vec<(String, String)>,
    pub path: Vec<PathBuf>,
}

impl Environment {
    pub fn read() -> Self {
        let get = |name: &str| std::env::var(name).unwrap_or_default();
        let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self {
            command: get("CNI_COMMAND"),
            container: get("CNI_CONTAINERID"),
            namespace: get("CNI_NETNS"),
            interface: get("CNI_IFNAME"),
            arguments: get("CNI_ARGS").split(';').filter_map(pair).collect(),
            path: std::env::split_paths(&get("CNI_PATH")).filter(|path| path.is_absolute()).collect(),
        }
    }

    /// An argument of `CNI_ARGS` that is not empty.
    pub fn argument(&self, name: &str) -> Option<&str> {
        let found = self.arguments.iter().find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }

    /// The container and the interface are needed by all commands about one attachment.
    pub fn check(&self, needs_namespace: bool) -> Result<(), CniError> {
        let is_plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        let starts = |text: &str| text.starts_with(|first: char| first.is_ascii_alphanumeric());
        let refuse = |name: &str, what: &str| {
            Err(CniError::new(Code::InvalidEnvironment, format!("{name} {what}: the runtime must set it")))
        };
        if !starts(&self.container) || !is_plain(&self.container) || self.container.len() > 200 {
            return refuse("CNI_CONTAINERID", "is not 1 to 200 letters, digits, `_`, `.` and `-`");
        }
        let is_interface = |text: &str| {
            (1..=15).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:".contains(&byte))
        };
        if !is_interface(&self.interface) || [".", ".."].contains(&self.interface.as_str()) {
            return refuse("CNI_IFNAME", "is no name of an interface");
        }
        if needs_namespace && !self.namespace.starts_with('/') {
            return refuse("CNI_NETNS", "is not the path of a network namespace");
        }
        Ok(())
    }
}

/// The configuration of a network.
#[derive(Clone, Debug)]
pub struct Config {
    /// As it came, for the IPAM plug-in.
    pub raw: Map<String, Value>,
    pub version: String,
    pub name: String,
    pub socket: Option<PathBuf>,
    pub data: PathBuf,
    /// What kind of port an attachment gets.
    pub kind: Kind,
    /// Keys of the `[[port]]`, as in netvmd's file.
    pub port: Map<String, Value>,
    /// Whether only the container's own addresses pass.
    pub guard: bool,
    pub labels: Vec<(String, String)>,
    pub runtime: RuntimeConfig,
    pub previous: Option<Value>,
    /// The IPAM plug-in; `None`: the network has no addresses.
    pub ipam: Option<String>,
    /// Seconds that it may take.
    pub ipam_timeout: u64,
    pub valid: Vec<Attachment>,
}

/// The kinds of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An interface in the container's namespace.
    Container,
    /// A socket in a folder, for a guest or a program in the container.
    Socket {
        /// `vhost-user` or `memif`.
        word: &'static str,
        folder: PathBuf,
    },
}

/// The words of [`Kind::Socket`].
const SOCKETS: [&str; 2] = ["vhost-user", "memif"];

/// What the runtime fills in for the capabilities that the configuration names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RuntimeConfig {
    pub port_mappings: Vec<PortMapping>,
    pub bandwidth: Bandwidth,
    pub mac: Option<String>,
    pub labels: Map<String, Value>,
    #[serde(rename = "io.kubernetes.cri.pod-annotations")]
    pub annotations: Map<String, Value>,
}

/// A published port. containerd begins the names with capitals, as readers in Go do not distinguish.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    #[serde(default, alias = "HostPort")]
    pub host_port: u16,
    #[serde(alias = "ContainerPort")]
    pub container_port: u16,
    #[serde(default, alias = "Protocol")]
    pub protocol: String,
    #[serde(default, rename = "hostIP", alias = "HostIP")]
    pub host_ip: String,
}

/// Bits a second, and bits of a burst, seen from the container; 0: no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    #[serde(alias = "IngressRate")]
    pub ingress_rate: u64,
    #[serde(alias = "IngressBurst")]
    pub ingress_burst: u64,
    #[serde(alias = "EgressRate")]
    pub egress_rate: u64,
    #[serde(alias = "EgressBurst")]
    pub egress_burst: u64,
}

/// An attachment that GC must keep.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Attachment {
    #[serde(rename = "containerID")]
    pub container: String,
    #[serde(rename = "ifname")]
    pub interface: String,
}

impl Config {
    /// Reads a configuration.
    pub fn parse(text: &[u8]) -> Result<Self, CniError> {
        let raw: Map<String, Value> = serde_json::from_slice(text).map_err(|error| {
            CniError::new(Code::Decode, format!("the network's configuration is no JSON object: {error}"))
        })?;
        let version = raw.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0").to_owned();
        if !VERSIONS.contains(&version.as_str()) {
            let message = format!("cniVersion {version}: netvm-cni speaks {}", VERSIONS.join(", "));
            return Err(CniError::new(Code::IncompatibleVersion, message));
        }
        let wrong = |key: &str, what: &str| CniError::new(Code::InvalidConfig, format!("`{key}` {what}"));
        let text = |key: &str| match raw.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(wrong(key, "is not a string")),
        };
        let object = |key: &str| match raw.get(key) {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(object)) => Ok(object.clone()),
            Some(_) => Err(wrong(key, "is not an object")),
        };
        let name = text("name")?.unwrap_or_default();
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        if name.is_empty() || !is_name || name.len() > 200 || name.starts_with('.') {
            return Err(wrong("name", "must be 1 to 200 letters, digits, `_`, `.` and `-`"));
        }
        let kind = match text("kind")?.as_deref() {
            None | Some("container") => Kind::Container,
            Some(other) => {
                let Some(word) = SOCKETS.into_iter().find(|word| *word == other) else {
                    return Err(wrong("kind", "is `container`, `vhost-user` or `memif`"));
                };
                let folder = text("socketFolder")?.map(PathBuf::from);
                let Some(folder) = folder.filter(|folder| folder.is_absolute()) else {
                    return Err(wrong(
                        "socketFolder",
                        "is missing: the folder of the sockets, as an absolute path",
                    ));
                };
                Kind::Socket { word, folder }
            }
        };
        let port = object("port")?;
        let own = [
            "name",
            "kind",
            "namespace",
            "interface",
            "path",
            "mac",
            "addresses",
            "gateways",
            "labels",
            "publish",
        ];
        if let Some(key) = own.into_iter().find(|key| port.contains_key(*key)) {
            return Err(wrong(&format!("port.{key}"), "comes from the runtime: remove it"));
        }
        let labels = object("labels")?;
        let labels = labels.iter().map(|(key, value)| {
            let value = value.as_str().ok_or_else(|| wrong(&format!("labels.{key}"), "is not a string"))?;
            Ok((key.clone(), value.to_owned()))
        });
        let labels = labels.collect::<Result<_, CniError>>()?;
        let decode = |key: &str, error: serde_json::Error| wrong(key, &format!("cannot be read: {error}"));
        let runtime = raw.get("runtimeConfig").cloned().unwrap_or_else(|| Value::Object(Map::new()));
        let runtime = serde_json::from_value(runtime).map_err(|error| decode("runtimeConfig", error))?;
        // A runtime in Go writes none as null.
        let valid = raw.get("cni.dev/valid-attachments").cloned().unwrap_or_default();
        let valid: Option<Vec<Attachment>> =
            serde_json::from_value(valid).map_err(|error| decode("cni.dev/valid-attachments", error))?;
        let ipam = object("ipam")?;
        let ipam =
            ipam.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty()).map(str::to_owned);
        if ipam.as_ref().is_some_and(|kind| kind.contains('/')) {
            return Err(wrong("ipam.type", "is the name of a program in CNI_PATH, not a path"));
        }
        let ipam_timeout = raw.get("ipamTimeout").and_then(Value::as_u64).unwrap_or(20).clamp(1, 300);
        let guard = raw.get("guard").and_then(Value::as_bool).unwrap_or(true);
        let socket = text("socket")?.map(PathBuf::from);
        let data = text("dataDir")?.map_or_else(|| DATA_FOLDER.into(), PathBuf::from);
        let previous = raw.get("prevResult").filter(|value| value.is_object()).cloned();
        Ok(Self {
            version,
            name,
            socket,
            data,
            kind,
            port,
            guard,
            labels,
            runtime,
            previous,
            ipam,
            ipam_timeout,
            valid: valid.unwrap_or_default(),
            raw,
        })
    }

    /// Whose ports those of this network are.
    pub fn owner(&self) -> String {
        format!("cni/{}", self.name)
    }
}
