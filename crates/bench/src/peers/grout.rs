// SPDX-License-Identifier: Apache-2.0
//! DPDK's `grout` (a router of graph nodes) with the traffic of `peer/traffic/traffic.c`: from one null port to
//! another.
//!
//! `tools/setup/peer.sh grout` unpacks grout with the DPDK of its release into a folder, which becomes its root. grout
//! has its own namespaces, because it creates an interface for each of its ports. The plug-in counts packets as they
//! are sent. Rates are per second of CPU time of grout's datapath thread.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netvm_router::NextHopId;

use super::kill_with_parent;
use crate::error::BenchError;
use crate::machine::{Cores, own_program};
use crate::measure::harness::Plan;
use crate::measure::window::CpuTime;
use crate::setup::routes::{RouteTable, gateway};
use crate::setup::traffic::PLUGIN;

/// Its name in errors.
pub const NAME: &str = "grout";
/// The variable that names grout's folder, if it is not beside the programs.
const FOLDER: &str = "NETVM_BENCH_GROUT";
/// Time limit for grout to start, and to load a full table.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Number of tbl8 groups in its table, which hold prefixes longer than 24 bits.
const TBL8: u32 = 1 << 15;
/// Mounts the kernel's file systems in grout's root, and starts grout there.
const SCRIPT: &str = r#"set -e
mount --make-rprivate /
mount -t sysfs sysfs /sys
ip link set lo up
for folder in dev proc sys; do mount --rbind "/$folder" "$1/$folder"; done
root=$1; shift
exec env LC_ALL=C LD_PRELOAD=/tmp/netvm-bench-traffic.so chroot "$root" grout "$@""#;

/// A running grout with routes and traffic. Killed on drop, or when this process ends.
#[derive(Debug)]
pub struct Grout {
    child: Child,
    root: PathBuf,
    /// The folder of its files, within the root.
    files: PathBuf,
}

impl Grout {
    /// Finds grout's folder.
    ///
    /// # Errors
    /// [`BenchError::NoGrout`].
    pub fn find() -> Result<PathBuf, BenchError> {
        let beside = || Some(own_program().ok()?.parent()?.parent()?.join("guest/grout"));
        let folder = std::env::var_os(FOLDER).map(PathBuf::from).or_else(beside).unwrap_or_default();
        let root = folder.join("root");
        if root.join("usr/bin/grout").exists() { Ok(root) } else { Err(BenchError::NoGrout { folder }) }
    }

    /// Starts grout with the routes, and with traffic to `destinations` (in network order).
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its last output.
    pub fn start(table: &RouteTable, destinations: &[u32], cores: Cores) -> Result<Self, BenchError> {
        let root = Self::find()?;
        let files = root.join("tmp");
        let write = |name: &str, bytes: &[u8]| {
            let path = files.join(name);
            fs::write(&path, bytes).map_err(BenchError::system(format!("cannot write {}", path.display())))
        };
        write("netvm-bench-traffic.so", PLUGIN)?;
        write("destinations", &destinations.iter().flat_map(|to| to.to_ne_bytes()).collect::<Vec<_>>())?;
        write("sent", &[0; 8])?;
        for old in ["ready", "grout.sock", "metrics.sock"] {
            // An earlier run may have left it.
            let _ = fs::remove_file(files.join(old));
        }
        let log = File::create(files.join("log")).map_err(BenchError::system("cannot write grout's log"))?;
        let errors = log.try_clone().map_err(BenchError::system("cannot write grout's log"))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-c", SCRIPT, "sh"]).arg(&root);
        // Without micro-sleeps, because netvm's worker does not sleep here either.
        command.args(["--test-mode", "--poll-mode", "--socket", "/tmp/grout.sock"]);
        command.args(["--metrics", "unix:/tmp/metrics.sock"]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin"));
        command.env("GROUT_MAX_ROUTES", most_routes(table).to_string());
        command.env("NETVM_BENCH_FLOWS", "1").env("NETVM_BENCH_DESTINATIONS", "/tmp/destinations");
        command.env("NETVM_BENCH_READY", "/tmp/ready").env("NETVM_BENCH_SENT", "/tmp/sent");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        kill_with_parent(&mut command);
        let child = command.spawn().map_err(BenchError::system("cannot run unshare (package util-linux)"))?;
        let mut own = Self { child, root, files };
        own.wait_for("its socket", |own| own.files.join("grout.sock").exists())?;
        own.wait_for("an answer", |own| {
            own.ask(&["interface", "show"]).is_ok_and(|out| out.status.success())
        })?;
        own.configure(table, cores)?;
        own.wait_for("traffic", |own| own.files.join("ready").exists() && own.sent() > 0)?;
        Ok(own)
    }

    /// Configures the ports, the next hops and the routes.
    fn configure(&self, table: &RouteTable, cores: Cores) -> Result<(), BenchError> {
        let most = most_routes(table);
        let mut text = format!(
            "affinity cpus set control {} datapath {}\n\
             interface add port in devargs net_null0,size=60 mac 02:00:00:00:00:01 rxqs 1 down\n\
             interface add port out devargs net_null1,size=60,no-rx=1 mac 02:00:00:00:01:01 rxqs 1 up\n\
             interface set vrf main rib4-routes {most} fib4-tbl8 {TBL8}\n\
             address add 10.102.0.1/16 iface out\n",
            cores.nf, cores.engine
        );
        for hop in table.next_hops() {
            let (id, address) = (hop.0, gateway(hop));
            let low = address.octets()[3];
            text +=
                &format!("nexthop add l3 iface out id {id} address {address} mac 02:00:00:00:02:{low:02x}\n");
        }
        let routes = table.possible().map(|(net, NextHopId(id))| format!("route add {net} via id {id}\n"));
        text.extend(routes);
        // Last, because packets arrive from then on.
        text += "address add 10.101.0.1/24 iface in\ninterface set port in up\n";
        let file = self.files.join("commands");
        let what = || BenchError::system(format!("cannot write {}", file.display()));
        let mut out = File::create(&file).map_err(what())?;
        out.write_all(text.as_bytes()).map_err(what())?;
        let answer = self.ask(&["--err-exit", "--file", "/tmp/commands"])?;
        if answer.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&answer.stderr);
        Err(failed(format!("grcli: {}", errors.trim().lines().next_back().unwrap_or("failed"))))
    }

    /// Runs `grcli` in grout's root and mount namespace.
    fn ask(&self, arguments: &[&str]) -> Result<Output, BenchError> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.child.id())).arg("chroot").arg(&self.root);
        command.args(["grcli", "--socket", "/tmp/grout.sock"]).args(arguments);
        command.env("LC_ALL", "C").env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        command
            .stdin(Stdio::null())
            .output()
            .map_err(BenchError::system("cannot run nsenter (package util-linux)"))
    }

    fn wait_for(&mut self, what: &str, is_met: impl Fn(&Self) -> bool) -> Result<(), BenchError> {
        let start = Instant::now();
        while !is_met(self) {
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || start.elapsed() > TIMEOUT {
                let log = fs::read_to_string(self.files.join("log")).unwrap_or_default();
                let last = log.trim().lines().next_back().unwrap_or("nothing").to_owned();
                return Err(failed(format!("no {what}; last output: {last}")));
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Packets sent so far.
    fn sent(&self) -> u64 {
        read_count(&self.files.join("sent"))
    }

    /// CPU time since `before` of the thread that ran longest, which is the datapath thread.
    fn cpu_time(&self, before: &[(String, CpuTime)]) -> Duration {
        let now = CpuTime::of_each_thread(self.child.id());
        let known = |name: &String| before.iter().find(|(known, _)| known == name);
        let since = now.iter().filter_map(|(name, time)| Some(time.since(known(name)?.1).running));
        Duration::from_nanos(since.max().unwrap_or(0))
    }

    /// Million packets per second of the datapath thread's CPU time.
    ///
    /// # Errors
    /// [`BenchError::Nothing`] if none were sent.
    pub fn measure(&self, plan: &Plan) -> Result<f64, BenchError> {
        sleep(plan.warm_up);
        let (start, sent, before) = (Instant::now(), self.sent(), CpuTime::of_each_thread(self.child.id()));
        while !plan.is_over(start.elapsed(), self.cpu_time(&before)) {
            sleep(Duration::from_millis(5));
        }
        let (sent, cpu_time) = (self.sent() - sent, self.cpu_time(&before));
        if sent == 0 || cpu_time.is_zero() {
            return Err(BenchError::Nothing {
                what: NAME.to_owned(),
                seconds: start.elapsed().as_secs_f64(),
            });
        }
        Ok(sent as f64 / cpu_time.as_secs_f64() / 1e6)
    }
}

impl Drop for Grout {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn most_routes(table: &RouteTable) -> usize {
    (table.routes.len() + 1024).next_power_of_two()
}

fn failed(problem: String) -> BenchError {
    BenchError::Peer { peer: NAME, problem }
}

/// The number in a file of eight bytes; 0 while the file does not exist.
fn read_count(path: &Path) -> u64 {
    fs::read(path).ok().and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::read_count;

    #[test]
    fn counts_are_read_as_the_plug_in_writes_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(read_count(file.path()), 0);
        std::fs::write(file.path(), 77u64.to_ne_bytes()).unwrap();
        assert_eq!(read_count(file.path()), 77);
        assert_eq!(read_count("/nowhere".as_ref()), 0);
    }
}
