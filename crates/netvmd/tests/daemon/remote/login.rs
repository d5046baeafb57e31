// SPDX-License-Identifier: Apache-2.0
//! Users of the web page who log in with a password.

use std::io::Read;
use std::process::Stdio;

use super::super::watch::browser::Browser;
use super::super::watch::is_there;
use super::*;

const PASSWORD: &str = "correct horse battery";
const JSON: &str = "content-type: application/json";

/// A site with users.
struct Users {
    site: Site,
}

impl Users {
    /// Carol may capture, dave may look; eve has a password, and is not admitted. `None` without curl.
    fn new() -> Option<Self> {
        let own = Self { site: Site::new()? };
        for name in ["carol", "dave", "eve"] {
            netvm_passwords::set(&own.file(), name, PASSWORD).unwrap();
        }
        own.admit(&[("carol", "capture"), ("dave", "view")]);
        own.site.daemon.until("there is a login", |_| own.code(&["/"]) == 200);
        Some(own)
    }

    fn file(&self) -> PathBuf {
        self.site.daemon.folder.0.join("passwords")
    }

    fn admit(&self, users: &[(&str, &str)]) {
        let text = config(&self.site.daemon.folder, self.site.address, &CLIENTS);
        let users: String = users
            .iter()
            .map(|(name, role)| format!("[[api.remote.user]]\nname = \"{name}\"\nrole = \"{role}\"\n"))
            .collect();
        let key = format!("passwords = {:?}\n[[api.remote.client]]", self.file());
        let text =
            text.replacen("[[api.remote.client]]", &key, 1).replacen("[[port]]", &(users + "[[port]]"), 1);
        let _: netvm_api::ApplyReply = self.site.daemon.post(netvm_api::path::APPLY, &text);
    }

    /// The answer to a client without a certificate: headers and body.
    fn answer(&self, words: &[&str]) -> String {
        let output = self.site.curl_of_nobody(&[&["-i"], words].concat()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The status of an answer; 0 if there was none.
    fn code(&self, words: &[&str]) -> u16 {
        let answer = self.answer(words);
        answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// The answer to an attempt to log in.
    fn attempt(&self, name: &str, password: &str) -> String {
        let body = serde_json::json!({ "name": name, "password": password }).to_string();
        self.answer(&["-H", JSON, "-d", &body, "/web/login"])
    }

    /// Logs in; gives the cookie.
    fn log_in(&self, name: &str) -> String {
        let answer = self.attempt(name, PASSWORD);
        let line = answer.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = line.unwrap_or_else(|| panic!("{answer}"));
        let parts: Vec<&str> = cookie.trim().split("; ").collect();
        assert_eq!(parts[1..], ["Path=/", "Secure", "HttpOnly", "SameSite=Strict", "Max-Age=43200"]);
        assert!(parts[0].starts_with("__Host-netvm=") && parts[0].len() == 13 + 64, "{cookie}");
        parts[0].to_owned()
    }

    /// The status of a request with a cookie.
    fn with(&self, cookie: &str, words: &[&str]) -> u16 {
        self.code(&[&["-H", &format!("cookie: {cookie}")], words].concat())
    }

    fn until_out(&self, what: &str, cookie: &str) {
        self.site.daemon.until(what, |_| self.with(cookie, &["/v1/status"]) == 401);
    }
}

#[test]
fn a_user_has_a_role_until_logging_out() {
    let Some(users) = Users::new() else { return };
    // The page and nothing else, without a login.
    assert!(users.answer(&["/"]).contains("password-login"));
    assert_eq!(users.code(&["/web/app.js"]), 200);
    let refused = users.answer(&["/v1/status"]);
    assert!(refused.contains(" 401 ") && refused.contains("log in at the web page"), "{refused}");
    assert_eq!(users.code(&["-X", "POST", "/v1/stop"]), 401);
    let carol = users.log_in("carol");
    assert_eq!(users.with(&carol, &["/v1/status"]), 200);
    let entry = users.site.until_audited("she is logged", |entry| entry["result"] == "logged in");
    assert!(entry["client"]["user"] == "carol" && entry["status"] == 200, "{entry}");
    assert!(!entry.to_string().contains(PASSWORD));
    let body = "{\"packets\":1,\"seconds\":5,\"filter\":\"no filter\"}";
    let code = users.with(&carol, &["-H", JSON, "-d", body, "/v1/capture/file"]);
    assert!(![401, 403].contains(&code), "{code}");
    users.site.until_audited("the capture is logged", |entry| {
        entry["path"] == "/v1/capture/file"
            && entry["client"]["user"] == "carol"
            && entry["role"] == "capture"
    });
    assert_eq!(users.with(&carol, &["-X", "DELETE", "/v1/policy/rules/none"]), 403);
    users.site.until_audited("the refusal is logged", |entry| {
        entry["method"] == "DELETE" && entry["client"]["user"] == "carol" && entry["status"] == 403
    });
    let dave = users.log_in("dave");
    assert_eq!(users.with(&dave, &["-H", JSON, "-d", "{}", "/v1/capture/file"]), 403);
    // Not for the page of another site, and no login of another site's choice.
    assert_eq!(users.with(&carol, &["-H", "origin: https://evil.example", "/v1/status"]), 403);
    let body = format!("{{\"name\":\"carol\",\"password\":\"{PASSWORD}\"}}");
    let foreign = ["-H", JSON, "-H", "sec-fetch-site: cross-site", "-d", &body, "/web/login"];
    assert_eq!(users.code(&foreign), 403);
    // A reply that lasts ends with the session.
    let url = "/v1/events?follow=true";
    let mut follower = users
        .site
        .curl_of_nobody(&["-N", "-H", &format!("cookie: {carol}"), url])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut rest = follower.stdout.take().unwrap();
    rest.read_exact(&mut [0]).unwrap();
    assert_eq!(users.with(&carol, &["-X", "POST", "/web/logout"]), 200);
    rest.read_to_end(&mut Vec::new()).unwrap();
    assert!(!follower.wait().unwrap().success(), "it is cut");
    assert_eq!([users.with(&carol, &["/v1/status"]), users.with(&dave, &["/v1/status"])], [401, 200]);
    users.site.until_audited("she is out", |entry| {
        entry["result"] == "logged out" && entry["client"]["user"] == "carol"
    });
    assert_eq!(users.site.status("vera", &["/v1/status"]), 200, "certificates count as before");
}

#[test]
fn a_browser_logs_in_and_out() {
    if !is_there("chromium") {
        return;
    }
    let Some(users) = Users::new() else { return };
    let downloads = tempfile::tempdir().unwrap();
    let mut browser = Browser::open(&format!("https://{}/", users.site.address), downloads.path());
    let (text, refusal) = ("document.body.textContent", "document.getElementById('refusal').textContent");
    let shown = |id: &str| format!("document.getElementById('{id}')?.hidden === false");
    browser.until(&shown("password-login"), text);
    let log_in = |password: &str| {
        format!(
            "document.getElementById('user').value = 'carol'; document.getElementById('password').value = '{password}'; \
             document.getElementById('password-login').requestSubmit()"
        )
    };
    browser.value(&log_in("a wrong password"));
    browser.until(&format!("{refusal}.includes('no user has this name')"), refusal);
    browser.value(&log_in(PASSWORD));
    browser.until(&shown("views"), text);
    assert_eq!(browser.value("document.cookie"), "", "scripts cannot read it");
    users.site.until_audited("she is logged", |entry| entry["result"] == "logged in");
    browser.until(&shown("logout"), text);
    browser.value("document.getElementById('logout').click()");
    browser.until(&shown("password-login"), text);
    users.site.until_audited("she is out", |entry| entry["result"] == "logged out");
}

#[test]
fn wrong_logins_are_refused_and_logged_and_limited() {
    let Some(users) = Users::new() else { return };
    let wrong = "a wrong password";
    for (name, password) in [("carol", wrong), ("carol", ""), ("eve", PASSWORD), (PASSWORD, PASSWORD)] {
        let answer = users.attempt(name, password);
        assert!(answer.contains(" 401 ") && answer.contains("no user has this name"), "{name}: {answer}");
        assert!(!answer.contains("set-cookie"));
    }
    let refused = |entry: &Value| entry["path"] == "/web/login" && entry["status"] == 401;
    users
        .site
        .daemon
        .until("all are logged", |_| users.site.audit().iter().filter(|one| refused(one)).count() == 4);
    let names: Vec<Value> = users
        .site
        .audit()
        .iter()
        .filter(|one| refused(one))
        .map(|one| one["client"]["user"].clone())
        .collect();
    // What was typed as a name that nobody has may be a password.
    assert_eq!(names, ["carol".into(), "carol".into(), Value::Null, Value::Null]);
    assert!(users.site.daemon.log().contains("refused `POST /web/login`"));
    for body in ["", "{}", "[1]", "{\"name\":1,\"password\":2}"] {
        let code = users.code(&["-H", JSON, "-d", body, "/web/login"]);
        assert!((400..500).contains(&code), "{body}: {code}");
    }
    let codes: Vec<u16> = (0..9)
        .map(|_| users.attempt("carol", wrong))
        .map(|answer| {
            if answer.contains(" 429 ") {
                assert!(answer.contains("retry-after: 60"));
                429
            } else {
                401
            }
        })
        .collect();
    assert!(codes.contains(&429), "{codes:?}");
    // Others are served: another address, a certificate.
    let body = format!("{{\"name\":\"carol\",\"password\":\"{PASSWORD}\"}}");
    assert_eq!(users.code(&["--interface", "127.0.0.2", "-H", JSON, "-d", &body, "/web/login"]), 200);
    assert_eq!(users.site.status("anna", &["/v1/status"]), 200);
}

#[test]
fn sessions_end_with_what_they_rest_on() {
    let Some(users) = Users::new() else { return };
    let problems = || users.site.daemon.get::<netvm_api::Status>(netvm_api::path::STATUS).problems.join("\n");
    let carol = users.log_in("carol");
    users.admit(&[("carol", "view"), ("dave", "view")]);
    users.until_out("she has another role", &carol);
    let (carol, dave) = (users.log_in("carol"), users.log_in("dave"));
    netvm_passwords::set(&users.file(), "carol", "another password").unwrap();
    users.until_out("she has another password", &carol);
    assert_eq!(users.with(&dave, &["/v1/status"]), 200);
    // A file that cannot be used changes nothing, and is named.
    let good = std::fs::read_to_string(users.file()).unwrap();
    std::fs::write(users.file(), "dave\n").unwrap();
    users.site.daemon.until("it is a problem", |_| problems().contains("expected NAME:HASH"));
    assert_eq!(users.with(&dave, &["/v1/status"]), 200);
    std::fs::write(users.file(), good).unwrap();
    users.site.daemon.until("it is none any more", |_| problems().is_empty());
    netvm_passwords::remove(&users.file(), "dave").unwrap();
    users.until_out("he is removed", &dave);
    // Without users, nobody gets a connection without a certificate.
    users.site.admit(&CLIENTS);
    users.site.daemon.until("a certificate is needed", |_| users.code(&["/"]) == 0);
    users.site.until_refused("it has sent no certificate");
}
