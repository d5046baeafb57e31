//! Writes `netlib.h`, and gives the shared library the name by which programs ask for it.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const SOURCES: [&str; 5] =
    ["src/status.rs", "src/options.rs", "src/endpoint.rs", "src/packet.rs", "src/callback.rs"];

fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name| env::var(name);
    let (major, minor, patch) = (
        variable("CARGO_PKG_VERSION_MAJOR")?,
        variable("CARGO_PKG_VERSION_MINOR")?,
        variable("CARGO_PKG_VERSION_PATCH")?,
    );
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnetlib.so.{major}");

    let mut config = cbindgen::Config::from_file("cbindgen.toml")?;
    config.after_includes = Some(format!(
        "\n/** Version of this header; netlib_version() says that of the library. */\n\
         #define NETLIB_VERSION \"{major}.{minor}.{patch}\"\n\
         #define NETLIB_VERSION_NUMBER ({major} * 1000000 + {minor} * 1000 + {patch})\n\
         \n/** Verdict: to the next hop of the packet's chain, or to the chain's output after the last. */\n\
         #define NETLIB_NEXT 0u\n\
         /** Verdict: discard. */\n#define NETLIB_DROP 0x10000u\n\
         /** Verdict: out of port `port`. */\n#define NETLIB_TO_PORT(port) (0x20000u | (uint16_t)(port))\n\
         /** Verdict: to an NF of role `role`. */\n#define NETLIB_TO_ROLE(role) (0x30000u | (uint16_t)(role))\n\
         /** Verdict: discard, and the rest of its flow too, until it is idle for `seconds` (as the configuration bounds it),\n\
         \x20*  netlib_withdraw() takes it back, or the NF ends. */\n\
         #define NETLIB_DROP_FLOW(seconds) (0x40000u | (uint16_t)(seconds))\n\
         /** Verdict: to the next hop, and the rest of its flow passes this NF by, for as long. */\n\
         #define NETLIB_SKIP_FLOW(seconds) (0x50000u | (uint16_t)(seconds))\n"
    ));
    let sources =
        SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let header = out.join("netlib.h");
    let mut text = Vec::new();
    sources.generate()?.write(&mut text);
    // rustdoc's word for what the caller sees to, and doxygen's.
    fs::write(&header, String::from_utf8(text)?.replace(" * # Safety\n * ", " * @pre "))?;
    // OUT_DIR is TARGET/PROFILE/build/NAME/out: a copy goes where the libraries go, to be found with them.
    if let Some(profile) = out.ancestors().nth(3) {
        // In one step: another build may be reading the old one.
        let new = profile.join(format!("netlib.h.{}", std::process::id()));
        fs::copy(&header, &new)?;
        fs::rename(&new, profile.join("netlib.h"))?;
    }
    Ok(())
}
