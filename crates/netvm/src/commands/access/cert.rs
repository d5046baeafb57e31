// SPDX-License-Identifier: Apache-2.0
//! `netvm cert`: a small certificate authority.

use std::time::UNIX_EPOCH;

use netvm_api::Role;
use netvm_tls::{Authority, Issued, Lifetime};
use serde_json::json;

use crate::cli::CertCommand;
use crate::error::CliError;
use crate::output::Output;

/// Makes a certificate, and says which files it has written.
pub fn cert(output: &Output, command: &CertCommand) -> Result<(), CliError> {
    let (issued, admits) = match command {
        CertCommand::Ca { name, place, days } => {
            (Authority::create(&place.folder, name, Lifetime(*days))?, None)
        }
        CertCommand::Server { names, place, days } => {
            (Authority::open(&place.folder)?.server(names, Lifetime(*days))?, None)
        }
        CertCommand::Client { name, role, place, days } => {
            let issued = Authority::open(&place.folder)?.client(name, Lifetime(*days))?;
            (issued, Some(admission(name, *role)))
        }
    };
    let Issued { certificate, certificate_file, key_file } = issued;
    let fingerprint: String = certificate.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
    if output.json {
        let expires_at = certificate.not_after.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        return output.value(&json!({
            "certificate": certificate_file, "key": key_file, "fingerprint": fingerprint, "expires_at": expires_at,
        }));
    }
    let (certificate_file, key_file) = (certificate_file.display(), key_file.display());
    let mut text = format!("{certificate_file}  fingerprint {fingerprint}\n{key_file}  keep it secret\n");
    text.extend(
        admits.map(|lines| format!("\nTo admit this client, add to the configuration of netvmd:\n\n{lines}")),
    );
    output.text(&text)
}

/// The lines of the configuration that admit a client. Its name needs no quoting: see [`Authority::client`].
fn admission(name: &str, role: Role) -> String {
    format!("[[api.remote.client]]\nname = \"{name}\"\nrole = \"{}\"\n", role.word())
}
