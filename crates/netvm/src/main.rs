//! `netvm`: a client of netvmd's API for people and scripts, and the tools that need no netvmd.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod doctor;
mod error;
mod format;
mod output;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use netvm_api::Client;

use cli::{Cli, Command, ConfigCommand, FlowCommand, PolicyCommand};
use error::CliError;
use output::Output;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.json);
    match run(cli, &output) {
        Ok(()) => ExitCode::SUCCESS,
        // Who closed our output has seen enough.
        Err(error) if error.is_closed_output() => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli, output: &Output) -> Result<(), CliError> {
    match cli.command {
        Command::Check { file } => commands::check(output, &file),
        Command::Doctor => commands::doctor(output),
        Command::Replay(arguments) => commands::replay(&arguments, cli.json),
        Command::Policy { command: PolicyCommand::Eval { classbench, trace } } => {
            commands::policy_eval(&classbench, &trace)
        }
        Command::Policy { command: PolicyCommand::Import(arguments) } => commands::import(output, &arguments),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "netvm", &mut script);
            output.raw(&script)
        }
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(CliError::Runtime)?;
            let client = Client::new(cli.socket.as_deref());
            runtime.block_on(ask(command, &client, output))
        }
    }
}

/// The commands that ask netvmd.
async fn ask(command: Command, client: &Client, output: &Output) -> Result<(), CliError> {
    match command {
        Command::Status => commands::status(client, output).await,
        Command::Port { name } => commands::port(client, output, name.as_deref()).await,
        Command::Nf { role } => commands::nf(client, output, role.as_deref()).await,
        Command::Vm { command } => commands::vm(client, output, command).await,
        Command::Router { command } => commands::router(client, output, command).await,
        Command::Chain { name } => commands::chain(client, output, name.as_deref()).await,
        Command::Group { name } => commands::group(client, output, name.as_deref()).await,
        Command::Stats(arguments) => commands::stats(client, output, &arguments).await,
        Command::Plan { file } => commands::plan(client, output, &file).await,
        Command::Apply { file, yes } => commands::apply(client, output, &file, yes).await,
        Command::Config { command: ConfigCommand::Show } => commands::show_config(client, output).await,
        Command::Policy { command } => commands::policy(client, output, command).await,
        Command::Flow { command: FlowCommand::List { most } } => commands::flows(client, output, most).await,
        Command::Mac => commands::addresses(client, output).await,
        Command::Restart { role } => output.done(&client.restart(&role).await?),
        Command::Stop => output.done(&client.stop().await?),
        Command::Check { .. } | Command::Doctor | Command::Replay(_) | Command::Completion { .. } => Ok(()),
    }
}
