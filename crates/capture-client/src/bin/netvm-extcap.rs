// SPDX-License-Identifier: Apache-2.0
//! `netvm-extcap`: shows the capture points of a running netvmd as interfaces in Wireshark and tshark.
//!
//! Wireshark calls it by its extcap protocol (doc/extcap.adoc of Wireshark): to list interfaces, to ask for link types
//! and options, and to capture into a FIFO.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use netvm_api::{CaptureFile, CaptureRequest, Client, ClientError, ServerArgs};
use netvm_capture_client::{
    CaptureError, FilterError, Limits, Output, Session, SessionError, Target, compile, run,
};

/// Places of netvm as interfaces of Wireshark (extcap)
#[derive(Debug, Parser)]
#[command(name = "netvm-extcap", version)]
struct Arguments {
    /// List the interfaces
    #[arg(long)]
    extcap_interfaces: bool,
    /// List the link types of an interface
    #[arg(long)]
    extcap_dlts: bool,
    /// List the options of an interface
    #[arg(long)]
    extcap_config: bool,
    /// Capture into --fifo
    #[arg(long)]
    capture: bool,
    /// The interface
    #[arg(long)]
    extcap_interface: Option<String>,
    /// Filter in libpcap's language; without --capture, only check it
    #[arg(long)]
    extcap_capture_filter: Option<String>,
    /// Version of Wireshark
    #[arg(long, num_args = 0..=1)]
    extcap_version: Option<Option<String>>,
    /// Where to capture to
    #[arg(long)]
    fifo: Option<PathBuf>,
    /// Bytes to copy of each packet, 0: all
    #[arg(long, default_value_t = 0)]
    snaplen: u32,
    /// Drop reasons, separated by commas
    #[arg(long, default_value = "")]
    reason: String,
    /// Which netvmd; Wireshark gives no such options, but the environment or a script can
    #[command(flatten)]
    server: ServerArgs,
    /// Print the man page
    #[arg(long, hide = true)]
    man: bool,
}

#[derive(Debug, thiserror::Error)]
enum ExtcapError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("`{0}` is not an interface of netvm: see --extcap-interfaces")]
    Interface(String),
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// Interface of every drop.
const DROPPED: &str = "netvm-dropped";
/// Interface of all ports.
const ALL: &str = "netvm-ports";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.man {
        let printed = clap_mangen::Man::new(Arguments::command()).render(&mut std::io::stdout());
        return if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(serve(&arguments)),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(ExtcapError::Capture(error)) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netvm-extcap: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: &Arguments) -> Result<(), ExtcapError> {
    if arguments.extcap_interfaces {
        return list(&arguments.server.client()?).await;
    }
    if arguments.extcap_dlts {
        println!("dlt {{number=1}}{{name=EN10MB}}{{display=Ethernet}}");
        return Ok(());
    }
    if arguments.extcap_config {
        configure(arguments);
        return Ok(());
    }
    if arguments.capture {
        let client = arguments.server.client()?;
        return if client.socket().is_some() {
            capture(arguments, &client).await
        } else {
            download(arguments, &client).await
        };
    }
    if let Some(filter) = &arguments.extcap_capture_filter {
        // Wireshark takes any text on standard output for what is wrong.
        if let Err(error) = compile(filter) {
            println!("{error}");
        }
    }
    Ok(())
}

/// Lists the capture points. Without a netvmd there are none, which is no error: Wireshark asks at every start.
async fn list(client: &Client) -> Result<(), ExtcapError> {
    let version = env!("CARGO_PKG_VERSION");
    println!("extcap {{version={version}}}{{display=netvm}}");
    let (ports, nfs, chains, routers) =
        match tokio::try_join!(client.ports(), client.nfs(), client.chains(), client.routers()) {
            Ok(all) => all,
            Err(ClientError::NotRunning { .. } | ClientError::Denied { .. }) => return Ok(()),
            Err(error @ ClientError::Unreachable { .. }) => {
                eprintln!("netvm-extcap: {error}");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
    let interface =
        |value: &str, display: &str| println!("interface {{value={value}}}{{display=netvm {display}}}");
    interface(ALL, "all ports");
    interface(DROPPED, "dropped packets");
    for port in &ports {
        interface(&format!("netvm-port-{}", port.name), &format!("port {}", port.name));
    }
    for chain in &chains {
        for (n, role) in (1..).zip(&chain.hops) {
            interface(
                &format!("netvm-chain-{}-{n}", chain.name),
                &format!("chain {} hop {n} ({role})", chain.name),
            );
        }
    }
    let mut roles: Vec<&str> = nfs.iter().map(|nf| nf.role.as_str()).collect();
    roles.dedup();
    for role in roles {
        interface(&format!("netvm-nf-{role}"), &format!("NF {role}"));
    }
    for router in &routers {
        interface(&format!("netvm-router-{}", router.name), &format!("router {}", router.name));
    }
    Ok(())
}

fn configure(arguments: &Arguments) {
    println!(
        "arg {{number=0}}{{call=--snaplen}}{{display=Bytes of each packet}}{{tooltip=0: whole packets}}{{type=unsigned}}{{default=0}}"
    );
    if arguments.extcap_interface.as_deref() == Some(DROPPED) {
        println!(
            "arg {{number=1}}{{call=--reason}}{{display=Drop reasons}}{{tooltip=Separated by commas; none: all}}{{type=string}}"
        );
    }
}

/// What an interface stands for, as `--at` takes it.
fn request_of(interface: &str) -> Option<CaptureRequest> {
    let at = |point: String| CaptureRequest { at: vec![point], ..CaptureRequest::default() };
    if interface == DROPPED {
        return Some(CaptureRequest { dropped: true, ..CaptureRequest::default() });
    }
    if interface == ALL {
        return Some(CaptureRequest::default());
    }
    let (kind, name) = interface.strip_prefix("netvm-")?.split_once('-')?;
    match kind {
        "port" | "nf" | "router" => Some(at(format!("{kind}:{name}"))),
        "chain" => {
            let (chain, hop) = name.rsplit_once('-')?;
            Some(at(format!("chain:{chain}:{hop}")))
        }
        _ => None,
    }
}

/// What Wireshark wants, without its filter, and where to.
fn wanted(arguments: &Arguments) -> Result<(CaptureRequest, PathBuf), ExtcapError> {
    let interface = arguments.extcap_interface.clone().ok_or(ExtcapError::Missing("--extcap-interface"))?;
    let fifo = arguments.fifo.clone().ok_or(ExtcapError::Missing("--fifo"))?;
    let mut request = request_of(&interface).ok_or(ExtcapError::Interface(interface))?;
    request.snaplen = arguments.snaplen;
    if request.dropped {
        let reasons = arguments.reason.split(',').map(str::trim).filter(|reason| !reason.is_empty());
        request.reasons = reasons.map(str::to_owned).collect();
    }
    Ok((request, fifo))
}

/// Has a netvmd on another machine write the capture, and receives it.
async fn download(arguments: &Arguments, client: &Client) -> Result<(), ExtcapError> {
    let (CaptureRequest { at, dropped, reasons, snaplen, .. }, fifo) = wanted(arguments)?;
    let filter = arguments.extcap_capture_filter.clone().unwrap_or_default();
    let (packets, seconds) = (CaptureFile::MAX_PACKETS, CaptureFile::MAX_SECONDS);
    let request = CaptureFile { at, dropped, reasons, filter, snaplen, packets, seconds };
    let mut stream = client.capture_file(&request).await?;
    let mut to = OpenOptions::new().write(true).create(true).truncate(true).open(fifo)?;
    while let Some(chunk) = stream.next().await? {
        match to.write_all(&chunk).and_then(|()| to.flush()) {
            // Wireshark has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            outcome => outcome?,
        }
    }
    Ok(())
}

async fn capture(arguments: &Arguments, client: &Client) -> Result<(), ExtcapError> {
    let (mut request, fifo) = wanted(arguments)?;
    request.filter = compile(arguments.extcap_capture_filter.as_deref().unwrap_or_default())?;
    let session = Session::start(client, &request).await?;
    let mut output = Output::open(Target::File(fifo, None))?;
    // Wireshark ends it by a signal, or closes the FIFO.
    run(session, &mut output, Limits::default())?;
    Ok(())
}
