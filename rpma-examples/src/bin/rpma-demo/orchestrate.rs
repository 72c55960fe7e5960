//! Everything in one command: starts target and writer, kills the target, and checks what it leaves.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rpma::{FlushType, ProviderError};
use rpma_examples::{AddressError, default_address};

use crate::lines::Line;
use crate::options::{Everything, Region};
use crate::output::{self, OutputError};
use crate::process::{Heard, Process};
use crate::record::RunId;
use crate::target::new_file;
use crate::verify::{self, VerifyError};

/// Why not everything went well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrchestrateError {
    #[error("there is no RDMA provider to work with")]
    Provider(#[from] ProviderError),
    #[error("there is no address for the target: give one with --addr")]
    Address(#[from] AddressError),
    #[error("this program cannot start itself once more")]
    Start(#[source] io::Error),
    #[error("the target ended before it listened ({status}): what it said on standard error tells why")]
    NoTarget { status: ExitStatus },
    #[error("the {who} closed its output and did not end within {} s", .timeout.as_secs())]
    Stuck { who: Who, timeout: Duration },
    #[error("the {who} said nothing for {} s, and was killed", .timeout.as_secs())]
    Silent { who: Who, timeout: Duration },
    #[error("the {who} cannot be waited for")]
    Wait { who: Who, source: io::Error },
    #[error("the target cannot be killed")]
    Kill(#[source] io::Error),
    #[error("the target had ended by itself ({status}) before it was killed")]
    NotKilled { status: ExitStatus },
    #[error(
        "{acknowledged} of {records} records were acknowledged, and then the writer ended ({status}): what it said on standard error tells why"
    )]
    Incomplete { acknowledged: u64, records: u64, status: ExitStatus },
    #[error("after everything was acknowledged, the writer failed ({status})")]
    Writer { status: ExitStatus },
    #[error(transparent)]
    Verify(#[from] VerifyError),
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// One of the two children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Target,
    Writer,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Target => "target",
            Self::Writer => "writer",
        })
    }
}

/// Does everything.
pub(crate) fn run(options: &Everything) -> Result<(), OrchestrateError> {
    let host = match &options.addr {
        Some(host) => host.clone(),
        None => default_address(&options.provider.open()?)?.to_string(),
    };
    let path = match &options.region {
        Region::At(path) => RegionPath::Given(path.clone()),
        Region::NewFile => RegionPath::Temporary(new_file()),
    };

    let (to, heard) = channel();
    let mut ears = Ears { heard, timeout: options.timeout, acknowledged: 0 };
    let mut target = start(Who::Target, options, target_arguments(options, &host, path.get()), to.clone())?;
    let (addr, run) = ears.until_listening(&mut target)?;
    let mut writer = start(Who::Writer, options, writer_arguments(addr), to)?;
    let finished = ears.until_finished();

    // Whatever became of the writer: kill the target and look at what was acknowledged.
    target.kill().map_err(OrchestrateError::Kill)?;
    let status = end_of(&mut target, Who::Target, options.timeout)?;
    let was_killed = status.signal() == Some(SIGKILL);
    if was_killed {
        output::line(format_args!("killed: the target, process {}, with SIGKILL", target.id()))?;
    }
    let writer_status = ears.until_writer_ended(&mut writer)?;

    let acknowledged = ears.acknowledged;
    verify_after_kill(path.get(), run, acknowledged, was_killed)?;
    if acknowledged < options.layout.records {
        // Told by the target's end, if that came first.
        return Err(match finished {
            Err(silent @ OrchestrateError::Silent { .. }) => silent,
            _ => OrchestrateError::Incomplete { acknowledged, records: options.layout.records, status: writer_status },
        });
    }
    if !was_killed {
        return Err(OrchestrateError::NotKilled { status });
    }
    if !writer_status.success() {
        return Err(OrchestrateError::Writer { status: writer_status });
    }
    finished
}

/// `signal(7)`.
const SIGKILL: i32 = 9;

fn verify_after_kill(path: &Path, run: RunId, acknowledged: u64, was_killed: bool) -> Result<(), OrchestrateError> {
    if acknowledged == 0 {
        return Ok(());
    }
    let checked = verify::check(path, run, acknowledged)?;
    let when = if was_killed { "after the target was killed" } else { "after the target ended by itself" };
    output::line(format_args!("verified: {checked} {when}"))?;
    Ok(checked.into_result()?)
}

/// Where the region is; a file of ours is removed at the end.
#[derive(Debug)]
enum RegionPath {
    Given(PathBuf),
    Temporary(PathBuf),
}

impl RegionPath {
    fn get(&self) -> &Path {
        match self {
            Self::Given(path) | Self::Temporary(path) => path,
        }
    }
}

impl Drop for RegionPath {
    fn drop(&mut self) {
        if let Self::Temporary(path) = self {
            // The target may have failed before it made it.
            let _may_not_be_there = fs::remove_file(path);
        }
    }
}

fn start(who: Who, options: &Everything, arguments: Vec<OsString>, to: Sender<Heard<Who>>) -> Result<Process, OrchestrateError> {
    let program = std::env::current_exe().map_err(OrchestrateError::Start)?;
    let mut command = Command::new(program);
    command
        .arg("--orchestrated-by")
        .arg(std::process::id().to_string())
        .arg("--role")
        .arg(who.to_string())
        .arg("--provider")
        .arg(options.provider.name());
    command.arg("--timeout").arg(options.timeout.as_secs().to_string());
    if let Some(flush) = options.flush {
        command.arg("--flush").arg(match flush {
            FlushType::Persistent => "persistent",
            FlushType::Visibility => "visibility",
        });
    }
    command.arg("--records").arg(options.layout.records.to_string()).arg("--size").arg(options.layout.record_bytes.to_string());
    command.args(arguments);
    Process::start(command, who, to).map_err(OrchestrateError::Start)
}

fn target_arguments(options: &Everything, host: &str, path: &Path) -> Vec<OsString> {
    vec!["--addr".into(), host.into(), "--port".into(), options.port.to_string().into(), "--pmem".into(), path.into()]
}

fn writer_arguments(addr: SocketAddr) -> Vec<OsString> {
    let host = match addr {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        addr => addr.ip().to_string(),
    };
    vec!["--addr".into(), host.into(), "--port".into(), addr.port().to_string().into()]
}

/// The end of a child that closed its output, or was killed.
fn end_of(process: &mut Process, who: Who, timeout: Duration) -> Result<ExitStatus, OrchestrateError> {
    let ended = process.wait(timeout).map_err(|source| OrchestrateError::Wait { who, source })?;
    ended.ok_or(OrchestrateError::Stuck { who, timeout })
}

/// Hears what the children say: passes on what is for people, and keeps count of what is for us.
struct Ears {
    heard: Receiver<Heard<Who>>,
    /// For every line.
    timeout: Duration,
    acknowledged: u64,
}

/// What was heard and needs something done.
enum News {
    Listening(SocketAddr, RunId),
    Finished,
    Ended(Who),
}

impl Ears {
    fn until_listening(&mut self, target: &mut Process) -> Result<(SocketAddr, RunId), OrchestrateError> {
        loop {
            match self.next(Who::Target)? {
                News::Listening(addr, run) => return Ok((addr, run)),
                News::Ended(_) => return Err(OrchestrateError::NoTarget { status: end_of(target, Who::Target, self.timeout)? }),
                News::Finished => {}
            }
        }
    }

    /// Until the writer has nothing more to write, or the target or the writer is gone.
    fn until_finished(&mut self) -> Result<(), OrchestrateError> {
        loop {
            match self.next(Who::Writer)? {
                News::Finished | News::Ended(Who::Writer) => return Ok(()),
                // The writer will notice, and end.
                News::Ended(Who::Target) | News::Listening(..) => {}
            }
        }
    }

    /// Until the writer has ended, which it does when its connection has; it is killed if it does not.
    fn until_writer_ended(&mut self, writer: &mut Process) -> Result<ExitStatus, OrchestrateError> {
        // The writer itself gives up waiting for the connection's end after the time-out.
        let deadline = Instant::now() + 2 * self.timeout;
        loop {
            match self.next(Who::Writer) {
                Ok(News::Ended(Who::Writer)) => break,
                // Its output may have ended before.
                Err(OrchestrateError::Silent { .. }) if Instant::now() < deadline => {}
                Err(OrchestrateError::Silent { .. }) => {
                    writer.kill().map_err(|source| OrchestrateError::Wait { who: Who::Writer, source })?;
                    break;
                }
                Ok(News::Ended(Who::Target) | News::Listening(..) | News::Finished) => {}
                Err(e) => return Err(e),
            }
        }
        end_of(writer, Who::Writer, self.timeout)
    }

    /// The next news; `awaited` is who must say something within the time-out.
    fn next(&mut self, awaited: Who) -> Result<News, OrchestrateError> {
        loop {
            let heard = match self.heard.recv_timeout(self.timeout) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) => return Err(OrchestrateError::Silent { who: awaited, timeout: self.timeout }),
                // Both have ended and that was heard.
                Err(RecvTimeoutError::Disconnected) => return Ok(News::Ended(awaited)),
            };
            match heard {
                Heard::End(who) => return Ok(News::Ended(who)),
                Heard::Line(_, line) => match line.parse() {
                    Ok(Line::Listening { addr, run }) => return Ok(News::Listening(addr, run)),
                    Ok(Line::Acknowledged(records)) => self.acknowledged = records,
                    Ok(Line::Finished) => return Ok(News::Finished),
                    Err(_for_people) => output::line(line)?,
                },
            }
        }
    }
}
