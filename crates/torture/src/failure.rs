// SPDX-License-Identifier: Apache-2.0
//! What is wrong.

use std::io;

use netvm_api::ClientError;

/// The run failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It needs interfaces and hostile processes.
    #[error("netvm-torture makes interfaces and kills processes: run it as root")]
    NotRoot,
    /// A step of its own failed.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// netvmd does not start.
    #[error("netvmd did not come up within {0} s")]
    NotUp(u64),
    /// netvmd has ended.
    #[error("netvmd has ended: {0}")]
    Ended(String),
    /// netvmd does not answer, or not as it should.
    #[error(transparent)]
    Api(#[from] ClientError),
    /// A promise is broken.
    #[error("{0}")]
    Broken(String),
}

/// Names the step that failed.
pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    let what = what.into();
    move |source| Failure::Io { what, source }
}
