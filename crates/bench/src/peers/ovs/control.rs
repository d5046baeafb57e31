// SPDX-License-Identifier: Apache-2.0
//! JSON-RPC calls on a daemon's control socket, like `ovs-appctl` but without starting a program during a measurement.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

/// Time limit for a call; adding a thousand rules takes some seconds on busy cores.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A daemon's reply.
#[derive(Debug, Deserialize)]
struct Reply {
    result: Option<String>,
    error: Option<String>,
}

/// Calls `method` of the daemon at `socket`; returns its reply as text.
///
/// # Errors
/// The kernel's error, or the daemon's as [`io::ErrorKind::Other`].
pub fn call(socket: &Path, method: &str, parameters: &[&str]) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = json!({ "id": 0, "method": method, "params": parameters });
    stream.write_all(request.to_string().as_bytes())?;
    // The daemon keeps the connection open: the reply is one JSON value.
    let mut replies = serde_json::Deserializer::from_reader(stream).into_iter::<Reply>();
    match replies.next() {
        Some(Ok(Reply { result: Some(text), .. })) => Ok(text),
        Some(Ok(Reply { error, .. })) => {
            Err(io::Error::other(format!("{method}: {}", error.unwrap_or_default())))
        }
        Some(Err(error)) => Err(error.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Calls a daemon that sends `reply`; returns the request and the result.
    fn answered(reply: &'static str) -> (serde_json::Value, io::Result<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ctl");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let count = stream.read(&mut request).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            serde_json::from_slice(&request[..count]).unwrap()
        });
        let answer = call(&path, "dpctl/show", &["-s"]);
        (daemon.join().unwrap(), answer)
    }

    #[test]
    fn one_call_one_answer() {
        let (asked, answer) = answered(r#"{"error":null,"id":0,"result":"flows: 1\n"}"#);
        assert_eq!(asked, json!({ "id": 0, "method": "dpctl/show", "params": ["-s"] }));
        assert_eq!(answer.unwrap(), "flows: 1\n");
    }

    #[test]
    fn the_daemons_error_is_returned() {
        let (_, answer) = answered(r#"{"error":"no such bridge","id":0,"result":null}"#);
        assert!(answer.unwrap_err().to_string().contains("no such bridge"));
    }
}
