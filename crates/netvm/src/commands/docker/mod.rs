// SPDX-License-Identifier: Apache-2.0
//! `netvm docker`: a network driver of Docker (libnetwork's remote driver, `docs/remote.md` there). Docker connects to
//! a socket in its folder of plug-ins, and asks for networks and endpoints. Each endpoint that a container joins is a
//! port of netvmd. Docker keeps the addresses (IPAM).

mod driver;
mod messages;
mod names;
mod port;
mod state;

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use netvm_api::Client;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::cli::DockerArgs;
use crate::error::{CliError, DockerError};
use crate::output::Output;
use driver::Driver;
use state::State;

/// Longest request to read.
const MAX_REQUEST: usize = 1 << 20;
/// What Docker's programs expect of a plug-in (`docs/extend/plugin_api.md`).
const CONTENT_TYPE: &str = "application/vnd.docker.plugins.v1.1+json";

/// Serves Docker until a signal ends it.
pub async fn docker(client: &Client, output: &Output, arguments: &DockerArgs) -> Result<(), CliError> {
    let path = arguments.socket_folder.join(format!("{}.sock", arguments.name));
    let listener = listen(&path).await?;
    let driver = Driver::new(client.clone(), State::open(&arguments.state)?);
    let driver = Arc::new(tokio::sync::Mutex::new(driver));
    let joined = Arc::new(Notify::new());
    // Those of before a restart.
    joined.notify_one();
    let (of_names, docker, has_joined) = (Arc::clone(&driver), arguments.docker.clone(), Arc::clone(&joined));
    tokio::spawn(async move { names::follow(of_names, &docker, has_joined).await });
    let failed = |source| DockerError::Socket { path: path.clone(), source };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    output.text(&format!("serving Docker's network driver `{}` on {}\n", arguments.name, path.display()))?;
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.map_err(failed)?.0,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
        let (driver, joined) = (Arc::clone(&driver), Arc::clone(&joined));
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let (driver, joined) = (Arc::clone(&driver), Arc::clone(&joined));
                async move {
                    let response = answer(driver, request).await;
                    joined.notify_one();
                    response
                }
            });
            // A connection that breaks concerns its requests only, which Docker repeats.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
    std::fs::remove_file(&path).map_err(failed)?;
    Ok(())
}

/// The socket, which only its owner may use, as Docker runs as root. One that a killed program has left is replaced.
async fn listen(path: &Path) -> Result<UnixListener, DockerError> {
    let failed = |source| DockerError::Socket { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    if path.exists() {
        if UnixStream::connect(path).await.is_ok() {
            return Err(DockerError::Served(path.to_owned()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Docker reads errors from the body.
async fn answer(
    driver: Arc<tokio::sync::Mutex<Driver>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), MAX_REQUEST).collect().await;
    let value = match body {
        Ok(body) => driver.lock().await.handle(&path, &body.to_bytes()).await,
        Err(error) => Ok(serde_json::json!({ "Err": format!("cannot read the request: {error}") })),
    };
    let value = value.unwrap_or_else(|error| serde_json::json!({ "Err": error.to_string() }));
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())));
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(CONTENT_TYPE));
    Ok(response)
}
