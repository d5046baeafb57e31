// SPDX-License-Identifier: Apache-2.0
//! Generates `netlib.h`, and sets the soname of the shared library.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const SOURCES: [&str; 10] = [
    "src/status.rs",
    "src/options.rs",
    "src/attach.rs",
    "src/endpoint.rs",
    "src/burst.rs",
    "src/packet.rs",
    "src/packet/owned.rs",
    "src/callback.rs",
    "src/endpoint/messages.rs",
    "src/sim.rs",
];

fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name| env::var(name);
    let (major, minor, patch) = (
        variable("CARGO_PKG_VERSION_MAJOR")?,
        variable("CARGO_PKG_VERSION_MINOR")?,
        variable("CARGO_PKG_VERSION_PATCH")?,
    );
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    // Before 1.0 each 0.x may change what programs were built against.
    let soname = if major == "0" { format!("0.{minor}") } else { major.clone() };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnetlib.so.{soname}");

    let mut config = cbindgen::Config::from_file("cbindgen.toml")?;
    config.after_includes = Some(format!(
        "\n/** Version of this header; netlib_version() returns that of the library. */\n\
         #define NETLIB_VERSION \"{major}.{minor}.{patch}\"\n\
         #define NETLIB_VERSION_NUMBER ({major} * 1000000 + {minor} * 1000 + {patch})\n\
         \n/** Verdict: send the packet to the next hop of its chain, or after the last hop to the chain's output. */\n\
         #define NETLIB_NEXT 0u\n\
         /** Verdict: discard the packet. */\n#define NETLIB_DROP 0x10000u\n\
         /** Verdict: send the packet out of port `port`. */\n#define NETLIB_TO_PORT(port) (0x20000u | (uint16_t)(port))\n\
         /** Verdict: send the packet to an NF of role `role`. */\n#define NETLIB_TO_ROLE(role) (0x30000u | (uint16_t)(role))\n\
         /** Verdict: discard the packet and the rest of its flow, until the flow has been idle for `seconds` (bounded by the\n\
         \x20*  configuration), netlib_withdraw() withdraws the verdict, or the NF ends. */\n\
         #define NETLIB_DROP_FLOW(seconds) (0x40000u | (uint16_t)(seconds))\n\
         /** Verdict: send the packet to the next hop, and the rest of its flow bypasses this NF for as long. */\n\
         #define NETLIB_SKIP_FLOW(seconds) (0x50000u | (uint16_t)(seconds))\n\
         /** Verdict: send the packet to the next hop, and the rest of its flow into chain `chain`, straight from its ingress\n\
         \x20*  port, until the flow has been idle for the configured time, an NF gives it another verdict, netlib_withdraw()\n\
         \x20*  withdraws this one, or the NF ends. `steer` of the configuration lists the destinations; others drop. */\n\
         #define NETLIB_STEER_TO_CHAIN(chain) (0x60000u | (uint16_t)(chain))\n\
         /** Verdict: the same, to an NF of role `role`. */\n#define NETLIB_STEER_TO_ROLE(role) (0x70000u | (uint16_t)(role))\n\
         /** Verdict: the same, out of port `port`. */\n#define NETLIB_STEER_TO_PORT(port) (0x80000u | (uint16_t)(port))\n\
         /** Verdict: the same, on the way on which no NF has steered it. */\n#define NETLIB_STEER_BACK 0x90000u\n"
    ));
    let sources =
        SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let header = out.join("netlib.h");
    let mut text = Vec::new();
    sources.generate()?.write(&mut text);
    // Replaces rustdoc's word for preconditions with doxygen's.
    fs::write(&header, String::from_utf8(text)?.replace(" * # Safety\n * ", " * @pre "))?;
    // OUT_DIR is TARGET/PROFILE/build/NAME/out. Copies the header next to the libraries.
    if let Some(profile) = out.ancestors().nth(3) {
        // Renames the copy into place, because another build may be reading the old one.
        let new = profile.join(format!("netlib.h.{}", std::process::id()));
        fs::copy(&header, &new)?;
        fs::rename(&new, profile.join("netlib.h"))?;
    }
    Ok(())
}
