// SPDX-License-Identifier: Apache-2.0
//! Errors of `netvm policy import`.

use std::path::PathBuf;

use netvm_policy_import::{classbench, iptables, kubernetes, nft};

/// Rules cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file is not a ClassBench filter set.
    #[error("{}, {source}", path.display())]
    ClassBench {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: classbench::ClassBenchError,
    },
    /// The file is not output of iptables-save.
    #[error("{}, {source}", path.display())]
    Iptables {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: iptables::IptablesError,
    },
    /// The file is not output of `nft -j list ruleset`.
    #[error("{}, {source}", path.display())]
    Nft {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: nft::NftError,
    },
    /// The file has no network policies.
    #[error("{}, {source}", path.display())]
    Kubernetes {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: kubernetes::KubernetesError,
    },
    /// A rule is for addresses of the router, which has no name.
    #[error(
        "{}, line {line}: translates packets to the machine's own addresses: name the router that has them in netvm, such as \
         `--router edge`",
        path.display()
    )]
    Router {
        /// The file.
        path: PathBuf,
        /// The line of the rule.
        line: u32,
    },
    /// Without the lines that have no equivalent, packets could pass that the file drops, or be translated otherwise.
    #[error(
        "{}: without the {lines} marked `error` above, the rules would pass packets that the file drops, or translate others, so none is printed. \
         Import a copy without {them}, and write rules for what {they}",
        path.display(), lines = lines(*count), them = if *count == 1 { "it" } else { "them" },
        they = if *count == 1 { "it does" } else { "they do" }
    )]
    Wider {
        /// The file.
        path: PathBuf,
        /// How many lines.
        count: usize,
    },
    /// Without the lines that have no equivalent, packets could be dropped that the file passes.
    #[error(
        "{}: without the {lines} marked `stricter` above, the rules would drop packets that the file passes, so none is printed. \
         With --stricter, netvm leaves {them} out",
        path.display(), lines = lines(*count), them = if *count == 1 { "it" } else { "them" }
    )]
    Stricter {
        /// The file.
        path: PathBuf,
        /// How many lines.
        count: usize,
    },
}

fn lines(count: usize) -> String {
    if count == 1 { "line".to_owned() } else { format!("{count} lines") }
}
