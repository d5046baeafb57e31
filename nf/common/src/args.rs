// SPDX-License-Identifier: Apache-2.0
//! Command-line options common to all sample NFs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use netlib::{MAX_THREADS, Options, Verdict, Waiting};

/// Options for attaching and waiting; flatten them into the NF's options.
#[derive(Clone, Debug, Default, Args)]
pub struct CommonArgs {
    /// Role of this NF [default: $NETVM_ROLE, which netvmd sets, else the program's name]
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
    /// Number of packet threads, 1 to 16 [default: $NETVM_THREADS, which netvmd sets, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS as i64))]
    pub threads: Option<u16>,
    /// Busy-poll instead of sleeping: lowest latency, for an NF with dedicated cores
    #[arg(long)]
    pub poll: bool,
    /// netvmd's attach socket [default: from the environment, else /run/netvm/attach.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl CommonArgs {
    /// Options for netlib, for program `name` with `counters`.
    #[must_use]
    pub fn options(&self, name: &str, counters: &[&str]) -> Options {
        let mut options = Options::new(name).with_counters(counters).with_offloads();
        if let Some(role) = &self.role {
            options.role.clone_from(role);
        }
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        options.waiting = if self.poll { Waiting::Poll } else { Waiting::Adaptive };
        options.socket.clone_from(&self.socket);
        options
    }
}

/// Action for packets with truncated or inconsistent headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum MalformedPolicy {
    /// Drop them.
    #[default]
    Drop,
    /// Send them to the next hop unchanged.
    Pass,
}

impl MalformedPolicy {
    /// The policy's verdict.
    #[inline]
    #[must_use]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::Drop => Verdict::Drop,
            Self::Pass => Verdict::Next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Nf {
        #[command(flatten)]
        common: CommonArgs,
    }

    fn parsed(args: &[&str]) -> Result<Options, clap::Error> {
        let nf = Nf::try_parse_from([&["nf"], args].concat())?;
        Ok(nf.common.options("netvm-nf", &["a"]))
    }

    #[test]
    fn options_are_passed_on() {
        let args = ["--role", "fw", "--threads", "3", "--poll", "--socket", "/x"];
        let options = parsed(&args).unwrap();
        assert_eq!((options.role.as_str(), options.threads, options.waiting), ("fw", 3, Waiting::Poll));
        assert_eq!((options.socket, options.counters), (Some("/x".into()), vec!["a".to_owned()]));
        let options = parsed(&[]).unwrap();
        assert_eq!((options.threads, options.waiting, options.socket), (1, Waiting::Adaptive, None));
    }

    #[test]
    fn impossible_numbers_of_threads_are_refused() {
        assert!(parsed(&["--threads", "0"]).is_err() && parsed(&["--threads", "17"]).is_err());
    }
}
