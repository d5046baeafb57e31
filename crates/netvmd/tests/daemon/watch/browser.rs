// SPDX-License-Identifier: Apache-2.0
//! A browser that a test types into: Chromium, by its DevTools protocol over two pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// Limit for what takes milliseconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Browser {
    child: Child,
    requests: File,
    answers: BufReader<File>,
    session: Option<String>,
    last: u64,
    /// Its profile and pipes.
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Opens a page, whatever its certificate; files that it offers are saved in `downloads`.
    pub fn open(url: &str, downloads: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = folder.path().join(name);
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            path
        };
        let (requests, answers) = (pipe("requests"), pipe("answers"));
        // The shell opens the pipes as the descriptors that Chromium wants; each waits for its other end.
        let script = "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
                      --ignore-certificate-errors --remote-debugging-pipe --user-data-dir=\"$0\" 3<\"$1\" 4>\"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(folder.path().join("profile")).args([&requests, &answers]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let requests = OpenOptions::new().write(true).open(requests).unwrap();
        let answers = BufReader::new(File::open(answers).unwrap());
        let mut own = Self { child, requests, answers, session: None, last: 0, _folder: folder };
        let target = own.ask("Target.createTarget", &json!({"url": url}))["targetId"].clone();
        let attached = own.ask("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        let to = json!({"behavior": "allow", "downloadPath": downloads});
        own.ask("Browser.setDownloadBehavior", &to);
        own.session = attached["sessionId"].as_str().map(str::to_owned);
        own
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let mut answer = Vec::new();
            self.answers.read_until(0, &mut answer).unwrap();
            assert_eq!(answer.pop(), Some(0), "the browser has ended");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            // Others are events.
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The value of an expression of the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let script = json!({"expression": expression, "returnByValue": true});
        self.ask("Runtime.evaluate", &script)["result"]["value"].clone()
    }

    /// Waits until an expression holds. The failure shows the value of `seen`.
    pub fn until(&mut self, expression: &str, seen: &str) {
        let is_so = netvm_testing::within(TIMEOUT, || self.value(expression) == true);
        assert!(is_so, "{expression}: {}", self.value(seen));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
