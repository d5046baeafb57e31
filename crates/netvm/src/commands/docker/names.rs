// SPDX-License-Identifier: Apache-2.0
//! Names and labels of containers. Docker's requests to a driver have no name, image and labels of the container:
//! Docker's API has them, once the container runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};

use super::driver::Driver;

/// Longest answer to read.
const MAX_ANSWER: usize = 16 << 20;
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// For how long Docker is asked for the names of containers that have joined.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The first interval between questions, and the longest.
const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// Longest key and longest value of a label.
const LABEL_BYTES: usize = 128;
/// Most labels of a container: ports have 32, of which some are left to the driver's options.
const MAX_LABELS: usize = 16;

/// A container, as `GET /containers/json` has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Container {
    names: Vec<String>,
    image: String,
    labels: BTreeMap<String, String>,
    network_settings: Settings,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Settings {
    networks: BTreeMap<String, Place>,
}

/// The place of a container in a network.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Place {
    #[serde(rename = "EndpointID")]
    endpoint: String,
}

impl Container {
    /// Its labels, its name, and that of its image. What cannot be a label of a port is left out.
    fn labels(&self) -> BTreeMap<String, String> {
        let is_word =
            |text: &str| text.len() <= LABEL_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_key = |key: &str| !key.is_empty() && !key.contains('=') && is_word(key);
        let labels = self.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let labels = labels.filter(|(key, value)| is_key(key) && is_word(value)).take(MAX_LABELS);
        let name = self.names.first().map(|name| name.trim_start_matches('/')).unwrap_or_default();
        let names = [("container", name), ("image", self.image.as_str())];
        let names = names.into_iter().filter(|(_, text)| !text.is_empty() && is_word(text));
        // The last one of a key stays.
        labels.chain(names).map(|(key, text)| (key.to_owned(), text.to_owned())).collect()
    }
}

/// Gives ports the names of their containers, each time that one has joined. Docker does not answer: they have none.
pub async fn follow(driver: Arc<Mutex<Driver>>, docker: &Path, joined: Arc<Notify>) {
    loop {
        joined.notified().await;
        let (begin, mut pause) = (Instant::now(), INTERVALS[0]);
        while begin.elapsed() < START_TIMEOUT && !give_names(&driver, docker).await {
            sleep(pause).await;
            pause = (pause * 2).min(INTERVALS[1]);
        }
    }
}

/// Names those that Docker knows; returns whether all have names.
async fn give_names(driver: &Mutex<Driver>, docker: &Path) -> bool {
    let unnamed = driver.lock().await.unnamed();
    let mut networks: Vec<&str> = unnamed.iter().map(|(_, network)| network.as_str()).collect();
    networks.sort_unstable();
    networks.dedup();
    let mut left = unnamed.len();
    for network in networks {
        for container in containers(docker, network).await.unwrap_or_default() {
            let labels = container.labels();
            let endpoints = container.network_settings.networks.values().map(|place| place.endpoint.as_str());
            for endpoint in endpoints.filter(|endpoint| unnamed.iter().any(|(id, _)| id == endpoint)) {
                // What fails, as while netvmd does not run, is tried again.
                left -= usize::from(driver.lock().await.name(endpoint, &labels).await.is_ok());
            }
        }
    }
    left == 0
}

/// The containers that run in a network.
async fn containers(docker: &Path, network: &str) -> Option<Vec<Container>> {
    let stream = UnixStream::connect(docker).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    let connection = tokio::spawn(connection);
    // `{"network":["ID"]}`
    let uri = format!("/containers/json?filters=%7B%22network%22%3A%5B%22{network}%22%5D%7D");
    let request = Request::get(uri).header(header::HOST, "docker").body(Empty::<Bytes>::new()).ok()?;
    let exchange = async {
        let response = sender.send_request(request).await.ok()?;
        Limited::new(response.into_body(), MAX_ANSWER).collect().await.ok()
    };
    let answer = timeout(ANSWER_TIMEOUT, exchange).await.ok().flatten();
    connection.abort();
    serde_json::from_slice(&answer?.to_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_that_a_port_can_have() {
        let mut text = serde_json::json!({
            "Names": ["/web"], "Image": "busybox",
            "Labels": { "app": "web", "image": "other", "note": "two words", "": "x", "a=b": "c", "empty": "" },
        });
        let of =
            |text: &serde_json::Value| serde_json::from_value::<Container>(text.clone()).unwrap().labels();
        let pairs = [("app", "web"), ("container", "web"), ("empty", ""), ("image", "busybox")];
        assert_eq!(of(&text), pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        for number in 0..100 {
            text["Labels"][format!("l{number}")] = "x".into();
        }
        text["Labels"]["long"] = "x".repeat(LABEL_BYTES + 1).into();
        // `image` is one of the most, and `container` comes besides.
        assert_eq!(of(&text).len(), MAX_LABELS + 1);
    }
}
