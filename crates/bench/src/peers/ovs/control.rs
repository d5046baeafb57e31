//! What `ovs-appctl` does: one JSON-RPC call over a daemon's control socket, without starting a program in the middle of a
//! measurement.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

/// Adding a thousand rules and then answering takes a second or two when both cores are busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a daemon answers.
#[derive(Debug, Deserialize)]
struct Reply {
    result: Option<String>,
    error: Option<String>,
}

/// Calls `method` of the daemon at `socket`; its answer as text.
///
/// # Errors
/// The kernel's; the daemon's own, as [`io::ErrorKind::Other`] with its text.
pub fn call(socket: &Path, method: &str, parameters: &[&str]) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = json!({ "id": 0, "method": method, "params": parameters });
    stream.write_all(request.to_string().as_bytes())?;
    // The daemon does not close the connection: one JSON value is the answer.
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

    /// A daemon that gives one answer; what it was asked, and what came back.
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
    fn what_the_daemon_refuses_is_said() {
        let (_, answer) = answered(r#"{"error":"no such bridge","id":0,"result":null}"#);
        assert!(answer.unwrap_err().to_string().contains("no such bridge"));
    }
}
