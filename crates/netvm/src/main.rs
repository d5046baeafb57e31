// SPDX-License-Identifier: Apache-2.0
//! `netvm`: the command-line client of netvmd's API, and tools that need no running netvmd.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod complete;
mod daemon;
mod doctor;
mod error;
mod format;
mod new_nf;
mod output;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use netvm_api::Client;

use cli::{Cli, CliCommand, ConfigCommand, FlowCommand, NfCommand, PolicyCommand, RouterCommand};
use error::CliError;
use output::Output;

fn main() -> ExitCode {
    CompleteEnv::with_factory(Cli::command).var(complete::VARIABLE).complete();
    let cli = Cli::parse();
    let output = Output::new(cli.json);
    match run(cli, &output) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader, such as `head`, has closed the pipe.
        Err(error) if error.is_closed_output() => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli, output: &Output) -> Result<(), CliError> {
    netvm_cpu::check()?;
    match cli.command {
        CliCommand::Check { file, offline } => commands::check(output, &file, offline),
        CliCommand::Doctor(arguments) => runtime()?.block_on(doctor::doctor(output, &arguments, &cli.server)),
        CliCommand::Replay(arguments) => daemon::replay(&arguments, cli.json),
        CliCommand::Policy { command: PolicyCommand::Eval { classbench, trace } } => {
            daemon::policy_eval(&classbench, &trace)
        }
        CliCommand::Router { command: Some(RouterCommand::Lookup(arguments)) } => {
            commands::lookup(&arguments, cli.json)
        }
        CliCommand::Policy { command: PolicyCommand::Import(arguments) } => {
            commands::import(output, &arguments)
        }
        CliCommand::Explain { name, markdown } => commands::explain(output, name.as_deref(), markdown),
        CliCommand::Cert { command } => commands::cert(output, &command),
        CliCommand::Passwd(arguments) => commands::passwd(output, &arguments),
        CliCommand::NewNf(arguments) => new_nf::new_nf(output, &arguments),
        CliCommand::Openapi { markdown: true } => output.text(&netvm_api::openapi::page()),
        CliCommand::Openapi { markdown: false } => output.value(&netvm_api::openapi::openapi()),
        CliCommand::Completion { shell } => output.raw(&complete::script(shell)?),
        CliCommand::Man { folder } => clap_mangen::generate_to(Cli::command(), &folder)
            .map_err(|source| CliError::Write { path: folder, source }),
        CliCommand::Fleet { etcd, command } => runtime()?.block_on(commands::fleet(output, &etcd, command)),
        command => {
            let runtime = runtime()?;
            let client = cli.server.client()?;
            runtime.block_on(ask(command, &client, output))
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)
}

/// Runs a command that needs netvmd.
async fn ask(command: CliCommand, client: &Client, output: &Output) -> Result<(), CliError> {
    match command {
        CliCommand::Status { wait } => commands::status(client, output, wait).await,
        CliCommand::Port { command: Some(command), .. } => commands::live_port(client, output, command).await,
        CliCommand::Port { name, .. } => commands::port(client, output, name.as_deref()).await,
        CliCommand::Nf { command: Some(NfCommand::HeldPackets { role, write }), .. } => {
            commands::held_packets(client, output, &role, write).await
        }
        CliCommand::Nf { role, .. } => commands::nf(client, output, role.as_deref()).await,
        CliCommand::Vm { command } => commands::vm(client, output, command).await,
        CliCommand::Router { command } => commands::router(client, output, command).await,
        CliCommand::Chain { name } => commands::chain(client, output, name.as_deref()).await,
        CliCommand::Group { name } => commands::group(client, output, name.as_deref()).await,
        CliCommand::Stats(arguments) => commands::stats(client, output, &arguments).await,
        CliCommand::Top(arguments) => commands::top(client, output, arguments).await,
        CliCommand::Events { follow, after } => commands::events(client, output, follow, after).await,
        CliCommand::Plan { file } => commands::plan(client, output, &file).await,
        CliCommand::Apply { file, how } => commands::apply(client, output, &file, how).await,
        CliCommand::Config { command } => configuration(command, client, output).await,
        CliCommand::Policy { command } => commands::policy(client, output, command).await,
        CliCommand::Flow { command: FlowCommand::List { limit } } => {
            commands::flows(client, output, limit).await
        }
        CliCommand::Flow { command: FlowCommand::Top { count } } => {
            commands::top_talkers(client, output, count).await
        }
        CliCommand::Conn { command } => commands::connections(client, output, command).await,
        CliCommand::Capture(arguments) => commands::capture(client, output, arguments).await,
        CliCommand::Trace(arguments) => commands::trace(client, output, &arguments).await,
        CliCommand::Mac => commands::addresses(client, output).await,
        CliCommand::Docker(arguments) => commands::docker(client, output, &arguments).await,
        CliCommand::Mdb => commands::multicast(client, output).await,
        CliCommand::Restart { role } => output.done(&client.restart(&role).await?),
        CliCommand::Stop { yes, purge } => commands::stop(client, output, yes, purge).await,
        CliCommand::Check { .. }
        | CliCommand::Doctor(_)
        | CliCommand::Replay(_)
        | CliCommand::Explain { .. }
        | CliCommand::Fleet { .. }
        | CliCommand::Cert { .. }
        | CliCommand::Passwd(_)
        | CliCommand::NewNf(_)
        | CliCommand::Openapi { .. }
        | CliCommand::Completion { .. }
        | CliCommand::Man { .. } => Ok(()),
    }
}

async fn configuration(command: ConfigCommand, client: &Client, output: &Output) -> Result<(), CliError> {
    match command {
        ConfigCommand::Show => commands::show_config(client, output).await,
        ConfigCommand::History => commands::history(client, output).await,
        ConfigCommand::Rollback { number, how } => commands::rollback(client, output, number, how).await,
        ConfigCommand::Confirm => output.done(&client.confirm().await?),
        ConfigCommand::Revert => output.done(&client.revert().await?),
    }
}
