// SPDX-License-Identifier: Apache-2.0
//! Who may use the API from other machines: certificates, and passwords.

mod cert;
mod passwd;

pub use cert::cert;
pub use passwd::passwd;
