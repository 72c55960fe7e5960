//! Appends records to persistent memory of another process, kills that process, and checks that every acknowledged record is there.
//! `rpma-demo --help` tells the rest.
#![forbid(unsafe_code)]

mod hello;
mod layout;
mod lines;
mod options;
mod orchestrate;
mod output;
mod process;
mod record;
mod target;
mod verify;
mod writer;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use rpma_examples::Chain;

use crate::options::{Environment, Job, Options};

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let job = match Options::parse().job(Environment::of_process()) {
        Ok(job) => job,
        Err(usage) => usage.exit(),
    };
    match run(&job) {
        Ok(()) => ExitCode::SUCCESS,
        Err((who, error)) => {
            eprintln!("{who}error: {}", Chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Does the job; an error comes with the name of the one of several processes that it is from.
fn run(job: &Job) -> Result<(), (&'static str, Box<dyn Error>)> {
    match job {
        Job::Everything(options) => orchestrate::run(options).map_err(|e| ("", e.into())),
        Job::Target(options) => {
            if let Some(parent) = options.orchestrated_by {
                process::end_with(parent).map_err(|e| ("target: ", e.into()))?;
            }
            target::run(options).map_err(|e| ("target: ", e.into()))
        }
        Job::Writer(options) => {
            if let Some(parent) = options.orchestrated_by {
                process::end_with(parent).map_err(|e| ("writer: ", e.into()))?;
            }
            writer::run(options).map_err(|e| ("writer: ", e.into()))
        }
        Job::Verify(options) => verify::run(options).map_err(|e| ("", e.into())),
    }
}
