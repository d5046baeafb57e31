// SPDX-License-Identifier: Apache-2.0
//! Checks of what other machines need of this one: the files and the address of the API for them, and the clock.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use netvm_model::RemoteApi;
use netvm_passwords::{Passwords, PasswordsError};
use netvm_tls::{ServerFiles, TlsError};

use super::Check;
use super::listener::{Listener, listener};
use super::root::Root;

/// A certificate that ends sooner is to be renewed.
const EXPIRY_WARNING: Duration = Duration::from_hours(14 * 24);
/// Programs that set the clock, as the kernel names them.
const CLOCK_PROGRAMS: [&str; 6] = ["chronyd", "ntpd", "ntp-daemon", "ptp4l", "phc2sys", "openntpd"];
/// What systemd-timesyncd makes when it has set the clock.
const SYNCHRONISED: &str = "run/systemd/timesync/synchronized";

/// Checks `[api.remote]` of a configuration, if it has one. `is_in_fleet`: netvmd follows etcd.
pub(super) fn check(root: &Root, config: &Path, is_in_fleet: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    let text = std::fs::read_to_string(config).ok();
    let parsed = text.map(|text| netvm_config::parse(&config.display().to_string(), &text));
    if let Some(Err(_)) = &parsed {
        let check = Check::warn("configuration", config.display().to_string(), "netvmd cannot use it");
        checks.push(check.command(format!("netvm check {}", config.display())));
    }
    let remote = parsed.and_then(Result::ok).and_then(|loaded| loaded.host.api.remote);
    if let Some(remote) = &remote {
        checks.extend([certificates(remote), address(root, remote.listen)]);
        checks.extend(remote.passwords.as_deref().map(passwords));
    }
    if remote.is_some() || is_in_fleet {
        checks.push(clock(root));
    }
    checks
}

fn certificates(remote: &RemoteApi) -> Check {
    const NAME: &str = "remote API";
    let files = ServerFiles {
        certificate: remote.certificate.clone(),
        key: remote.key.clone(),
        client_ca: remote.client_ca.clone(),
        admits_anonymous: remote.passwords.is_some(),
    };
    let renew = |file: &Path| {
        let folder = file.parent().unwrap_or(Path::new("."));
        format!(
            "netvm cert server NAME --folder FOLDER  # with the authority's key; then copy it to {}",
            folder.display()
        )
    };
    let side = match files.load() {
        Ok(side) => side,
        Err(error) => {
            let command = match &error {
                TlsError::OpenKey(path) => Some(format!("sudo chmod 600 {}", path.display())),
                TlsError::Expired { path, .. } => Some(renew(path)),
                TlsError::Early { .. } => Some("date -u  # set the clock, if this is wrong".to_owned()),
                TlsError::Read { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                    Some("sudo netvm doctor".to_owned())
                }
                _ => None,
            };
            let check =
                Check::warn(NAME, error.to_string(), "netvmd does not serve the API to other machines");
            return Check { command, ..check };
        }
    };
    let days = side.certificate.left().unwrap_or_default().as_secs() / 86_400;
    let found = format!("the certificate of {} is valid for {days} days", side.certificate.name);
    if side.certificate.left().is_none_or(|left| left < EXPIRY_WARNING) {
        let meaning = "then no client can connect any more";
        return Check::warn(NAME, found, meaning).command(renew(&remote.certificate));
    }
    Check::ok(NAME, found, "other machines can use the API with their certificates")
}

/// Who listens where netvmd is to.
fn address(root: &Root, listen: SocketAddr) -> Check {
    const NAME: &str = "API address";
    match listener(root, listen) {
        None => Check::ok(NAME, format!("{listen} is free"), "netvmd can serve the API there"),
        Some(Listener { process: Some((_, program)), .. }) if program == "netvmd" => {
            Check::ok(NAME, format!("netvmd listens on {listen}"), "it serves the API there")
        }
        Some(Listener { process: Some((pid, program)), .. }) => Check::warn(
            NAME,
            format!("{listen} is taken by process {pid} ({})", netvm_text::line(&program)),
            "netvmd cannot serve the API there: end that program, or choose another `listen` in [api.remote]",
        ),
        Some(Listener { process: None, .. }) => Check::note(
            NAME,
            format!("a program listens on {listen}, which this user cannot see"),
            "if it is not netvmd, netvmd cannot serve the API there",
        )
        .command("sudo netvm doctor"),
    }
}

fn passwords(path: &Path) -> Check {
    const NAME: &str = "passwords";
    match Passwords::read(path) {
        Ok(_) => Check::ok(NAME, path.display().to_string(), "users can log in to the web page"),
        Err(error) => {
            let command = match &error {
                PasswordsError::Open(path) => Some(format!("sudo chmod 600 {}", path.display())),
                PasswordsError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                    Some(format!("sudo netvm passwd NAME --file {}", path.display()))
                }
                _ => None,
            };
            Check { command, ..Check::warn(NAME, error.to_string(), "nobody can log in to the web page") }
        }
    }
}

fn clock(root: &Root) -> Check {
    const NAME: &str = "clock";
    let is_process = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = root.list("proc").into_iter().filter(is_process);
    let mut programs = processes.filter_map(|pid| root.read(&format!("proc/{pid}/comm")));
    let found = programs.find(|program| CLOCK_PROGRAMS.contains(&program.as_str()));
    let found = found.map(|program| format!("{program} sets it"));
    let by_systemd = || "systemd-timesyncd has set it".to_owned();
    match found.or_else(|| root.path(SYNCHRONISED).exists().then(by_systemd)) {
        Some(found) => Check::ok(NAME, found, "certificates are valid when they should be"),
        None => Check::note(
            NAME,
            "no program that is known here sets it",
            "with a clock that differs, certificates count as expired, or as not valid yet",
        )
        .command("sudo apt-get install chrony"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use netvm_tls::{Authority, Lifetime};

    use super::super::Level;
    use super::super::root::tests::Tree;
    use super::*;

    /// A configuration with its files.
    struct Site {
        folder: tempfile::TempDir,
        config: PathBuf,
    }

    impl Site {
        fn new(days: u16) -> Self {
            let folder = tempfile::tempdir().unwrap();
            Authority::create(folder.path(), "test", Lifetime(365)).unwrap();
            let authority = Authority::open(folder.path()).unwrap();
            authority.server(&["switch.example".to_owned()], Lifetime(days)).unwrap();
            let config = folder.path().join("host.toml");
            let at = |name: &str| folder.path().join(name);
            let text = format!(
                "[api.remote]\nlisten = \"127.0.0.1:9480\"\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n\
                 passwords = {:?}\n",
                at("server.crt"),
                at("server.key"),
                at("ca.crt"),
                at("passwords")
            );
            std::fs::write(&config, text).unwrap();
            netvm_passwords::set(&at("passwords"), "alice", "correct horse battery").unwrap();
            Self { folder, config }
        }

        fn mode(&self, name: &str, mode: u32) {
            let path = self.folder.path().join(name);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    /// The level and the words of a check.
    fn of(site: &Site, root: &Root, name: &str) -> (Level, String) {
        let check = check(root, &site.config, false).into_iter().find(|check| check.name == name).unwrap();
        let command = check.command.unwrap_or_default();
        (check.level, format!("{} | {} | {command}", check.found, check.meaning))
    }

    #[test]
    fn good_files_are_ok() {
        let tree = Tree::new(&[("proc/net/tcp", ""), ("proc/7/comm", "chronyd")]);
        let (site, root) = (Site::new(365), tree.root());
        for name in ["remote API", "API address", "passwords", "clock"] {
            let (level, words) = of(&site, &root, name);
            assert_eq!(level, Level::Ok, "{words}");
        }
        assert!(of(&site, &root, "remote API").1.contains("switch.example is valid for 36"));
        assert_eq!(check(&root, Path::new("/none"), false), []);
        assert_eq!(check(&root, Path::new("/none"), true).len(), 1, "the clock");
    }

    #[test]
    fn each_fault_has_its_words_and_a_command() {
        let tree = Tree::new(&[("proc/net/tcp", "")]);
        let root = tree.root();
        let (level, words) = of(&Site::new(3), &root, "remote API");
        assert!(
            level == Level::Warn && words.contains("valid for 2 days") && words.contains("netvm cert"),
            "{words}"
        );
        let expired = Site::new(0);
        // Within a second.
        netvm_testing::within(netvm_testing::LIMIT, || {
            of(&expired, &root, "remote API").1.contains("has expired")
        });
        let (level, words) = of(&expired, &root, "remote API");
        assert!(
            level == Level::Warn && words.contains("has expired") && words.contains("netvm cert"),
            "{words}"
        );
        let site = Site::new(365);
        let (level, words) = of(&site, &root, "clock");
        assert!(level == Level::Note && words.contains("chrony"), "{words}");
        site.mode("server.key", 0o644);
        let (level, words) = of(&site, &root, "remote API");
        assert!(level == Level::Warn && words.contains("sudo chmod 600"), "{words}");
        site.mode("passwords", 0o644);
        let (level, words) = of(&site, &root, "passwords");
        assert!(level == Level::Warn && words.contains("sudo chmod 600"), "{words}");
        std::fs::remove_file(site.folder.path().join("passwords")).unwrap();
        assert!(of(&site, &root, "passwords").1.contains("sudo netvm passwd NAME"));
        std::fs::remove_file(site.folder.path().join("server.key")).unwrap();
        assert!(of(&site, &root, "remote API").1.contains("server.key: No such file"));
        std::fs::write(&site.config, "[api").unwrap();
        let (level, words) = of(&site, &root, "configuration");
        assert!(level == Level::Warn && words.contains("netvm check"), "{words}");
    }

    #[test]
    fn a_port_that_is_taken_is_named_with_the_program() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                   0: 00000000:2508 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1\n";
        let site = Site::new(365);
        let of_program = |program: &str| {
            let tree = Tree::new(&[("proc/net/tcp", tcp), ("proc/77/comm", program)]);
            let tree = tree.link("proc/77/fd/3", "socket:[4242]");
            of(&site, &tree.root(), "API address")
        };
        let (level, words) = of_program("nginx");
        assert!(level == Level::Warn && words.contains("taken by process 77 (nginx)"), "{words}");
        assert_eq!(of_program("netvmd").0, Level::Ok);
        let (level, words) = of(&site, &Tree::new(&[("proc/net/tcp", tcp)]).root(), "API address");
        assert!(level == Level::Note && words.contains("sudo netvm doctor"), "{words}");
    }
}
