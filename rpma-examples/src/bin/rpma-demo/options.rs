//! The command line, and what it asks for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, ValueEnum};
use rpma::{FlushType, Provider};

use crate::layout::Layout;
use crate::record::{MIN_BYTES, RunId};

/// The longest record: more makes no better demonstration.
const MAX_RECORD_BYTES: i64 = 16 << 20;
const DEFAULT_RECORDS: u64 = 10_000;
const DEFAULT_RECORD_BYTES: u32 = 256;

/// Sets the default of `--addr`.
const ADDR_VARIABLE: &str = "RPMA_TEST_ADDR";
/// Sets the default of `--pmem`.
const PMEM_VARIABLE: &str = "RPMA_TEST_PMEM";

const ABOUT: &str = "\
Appends records to memory of another process over RDMA, flushing each, kills that process, and checks that they are all there.";

const LONG_ABOUT: &str = "\
Appends records to memory of another process over RDMA, flushing each, kills that process, and checks that
they are all there.

One command starts two processes. The target maps a region (a DAX device, or a file), registers it and
listens. The writer connects, receives the region's descriptor in the private data of the connection, and
appends records, each with a sequence number and a checksum. A record is acknowledged when the flush behind
it has completed; one is under way at a time. Then the target is killed with SIGKILL, the region is opened
afresh by a process that never had it, and every acknowledged record is compared with what was written.";

const AFTER_HELP: &str = "See --help for what this proves, and what it does not.";

const AFTER_LONG_HELP: &str = "\
What the kill of a process proves:
  That the records were written by the RDMA device, without the target's help, to memory that belongs to the
  kernel and not to the process: to the pages of the file or device that the target had mapped. A process
  that is killed runs no code of its own any more, and loses nothing from a shared mapping. So everything
  that was acknowledged had left the writer, crossed the network, and reached that memory.

What it does not prove:
  That the records survive a loss of power. The processor's caches, the network adapter's caches and the
  kernel's page cache all survive the death of a process, so records in any of them are found here too. Only
  a flush that is said to be persistent is meant to get them out of there; whether it does is a property of
  the device, the platform and the memory, and takes a power cut to test. A region on tmpfs is not persistent
  whatever the flush; one in an ordinary file's page cache only with the software provider, which brings it to
  the disk.

How a flush is made:
  native      by the RDMA FLUSH operation, where both devices have it
  emulated    by an RDMA READ behind the writes, elsewhere
  persistent  the records are durable when the flush has completed. The default where the target's region
              takes it: a DAX device, or a file on a DAX file system (the mapping has MAP_SYNC)
  visibility  the records can be seen by everything that reads the target's memory. The default elsewhere

On-demand paging:
  A file on a DAX file system can be registered with on-demand paging only. Soft-RoCE then misplaces what
  does not begin a page, or is longer than a packet (Linux 7.3, for one). So in such a file every record has
  a page of its own, and --size should be at most 1024 there.

On two machines:
  target$ rpma-demo --role target --addr ADDRESS --port 7204 --pmem PATH
  writer$ rpma-demo --role writer --addr ADDRESS --port 7204
  target$ rpma-demo --role verify --pmem PATH --acknowledged N --run-id ID
  The target serves one writer, until that disconnects or somebody kills it. The writer prints the third
  command, also if the target was killed while it was writing.

Environment:
  RPMA_TEST_ADDR  the default of --addr. Without it, the first address of this machine on an RDMA device
  RPMA_TEST_PMEM  the default of --pmem. Without it, a new file in /dev/shm, or in the directory for temporary
                  files; one command removes it at its end, a target of its own leaves it there
  RPMA_PROVIDER   the default of --provider
  RUST_LOG        what the library logs to standard error (default: warn)

Exit status:
  0  everything was acknowledged and is intact
  1  something is not, or something failed; standard error says what
  2  the options make no sense";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "rpma-demo", version, about = ABOUT, long_about = LONG_ABOUT, after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
pub(crate) struct Options {
    /// Be only one end, or only check a region afterwards [default: everything in one command]
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<Role>,

    #[arg(long, value_name = "NAME", help = provider_help())]
    provider: Option<Provider>,

    /// Address or host name of the target, on an RDMA device of its machine
    #[arg(long, value_name = "HOST")]
    addr: Option<String>,

    /// Port of the target; 0 takes a free one [default: 0; a writer needs one]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,

    /// DAX device, or file, to map as the region. What is in it is overwritten; a file is made if it is not there
    #[arg(long, value_name = "PATH")]
    pmem: Option<PathBuf>,

    #[command(flatten)]
    log: Log,

    /// How to flush: an error if the region does not take it [default: persistent where it does, else visibility]
    #[arg(long, value_enum, value_name = "TYPE")]
    flush: Option<Flush>,

    /// Seconds to wait for each step of the other side: a connection, a completion, a process
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,

    /// To verify: how many records, from the first one on, were acknowledged
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    acknowledged: Option<u64>,

    /// To verify: the number of the run, as target and writer print it
    #[arg(long, value_name = "ID")]
    run_id: Option<RunId>,

    /// We were started by the command that does everything, which is this process.
    #[arg(long, hide = true, value_name = "PID")]
    orchestrated_by: Option<u32>,
}

#[derive(Debug, Args)]
struct Log {
    /// How many records to append [default: 10000; for a writer, what the target has room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,

    /// Length of a record in bytes, 32 to 16777216 [default: 256; for a writer, the target's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(i64::from(MIN_BYTES)..=MAX_RECORD_BYTES))]
    size: Option<u32>,
}

/// What to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// The end that owns the region
    Target,
    /// The end that appends the records
    Writer,
    /// Checks a region after its target is gone
    Verify,
}

/// How to flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Flush {
    /// Until the records are durable
    Persistent,
    /// Until the records are visible
    Visibility,
}

impl From<Flush> for FlushType {
    fn from(flush: Flush) -> Self {
        match flush {
            Flush::Persistent => Self::Persistent,
            Flush::Visibility => Self::Visibility,
        }
    }
}

/// What the environment says where the command line says nothing.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    pub(crate) addr: Option<OsString>,
    pub(crate) pmem: Option<OsString>,
}

impl Environment {
    /// That of this process. A variable that is empty is as good as none.
    pub(crate) fn of_process() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self { addr: variable(ADDR_VARIABLE), pmem: variable(PMEM_VARIABLE) }
    }
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Everything(Everything),
    Target(Target),
    Writer(Writer),
    Verify(Verify),
}

/// Where the region is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Region {
    At(PathBuf),
    /// A new file in memory, or with temporary files.
    NewFile,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Everything {
    pub(crate) provider: Provider,
    pub(crate) addr: Option<String>,
    pub(crate) port: u16,
    pub(crate) region: Region,
    pub(crate) layout: Layout,
    pub(crate) flush: Option<FlushType>,
    pub(crate) timeout: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) provider: Provider,
    pub(crate) addr: Option<String>,
    pub(crate) port: u16,
    pub(crate) region: Region,
    pub(crate) layout: Layout,
    pub(crate) flush: Option<FlushType>,
    pub(crate) timeout: Duration,
    /// The process of the command that does everything, if that started us.
    pub(crate) orchestrated_by: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) provider: Provider,
    pub(crate) addr: String,
    pub(crate) port: u16,
    /// `None`: as many as the target has room for.
    pub(crate) records: Option<u64>,
    /// `None`: as long as the target has room for.
    pub(crate) record_bytes: Option<u32>,
    pub(crate) flush: Option<FlushType>,
    pub(crate) timeout: Duration,
    /// The process of the command that does everything, if that started us.
    pub(crate) orchestrated_by: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verify {
    pub(crate) path: PathBuf,
    pub(crate) acknowledged: u64,
    pub(crate) run: RunId,
}

impl Options {
    /// What the options ask for.
    ///
    /// # Errors
    ///
    /// An error of clap's, which prints itself and exits with status 2, if the options do not go together.
    pub(crate) fn job(self, environment: Environment) -> Result<Job, clap::Error> {
        let timeout = Duration::from_secs(self.timeout);
        if let Some((role, option)) = self.stray() {
            return Err(usage(ErrorKind::ArgumentConflict, format!("{option} means nothing {role}")));
        }
        let layout = Layout::packed(self.log.records.unwrap_or(DEFAULT_RECORDS), self.log.size.unwrap_or(DEFAULT_RECORD_BYTES));
        layout
            .region_bytes()
            .map_err(|e| usage(ErrorKind::ValueValidation, format!("{e}: give a smaller --records or --size")))?;
        let provider = || match self.provider {
            Some(provider) => Ok(provider),
            None => Provider::from_env_or(Provider::Auto).map_err(|e| usage(ErrorKind::InvalidValue, e.to_string())),
        };
        let addr = match (self.addr, environment.addr) {
            (Some(addr), _) => Some(addr),
            (None, None) => None,
            (None, Some(addr)) => {
                let addr = addr.into_string().map_err(|addr| {
                    usage(ErrorKind::InvalidUtf8, format!("{ADDR_VARIABLE} is no address: {}", Path::new(&addr).display()))
                })?;
                Some(addr)
            }
        };
        let region = self.pmem.or_else(|| environment.pmem.map(PathBuf::from)).map_or(Region::NewFile, Region::At);
        let flush = self.flush.map(FlushType::from);
        let port = self.port.unwrap_or(0);
        let orchestrated_by = self.orchestrated_by;

        Ok(match self.role {
            None => Job::Everything(Everything { provider: provider()?, addr, port, region, layout, flush, timeout }),
            Some(Role::Target) => {
                Job::Target(Target { provider: provider()?, addr, port, region, layout, flush, timeout, orchestrated_by })
            }
            Some(Role::Writer) => Job::Writer(Writer {
                provider: provider()?,
                addr: addr.ok_or_else(|| missing("a writer needs to know where the target is: give its address with --addr"))?,
                port: match port {
                    0 => return Err(missing("a writer needs to know where the target is: give its port, not 0, with --port")),
                    port => port,
                },
                records: self.log.records,
                record_bytes: self.log.size,
                flush,
                timeout,
                orchestrated_by,
            }),
            Some(Role::Verify) => Job::Verify(Verify {
                path: match region {
                    Region::At(path) => path,
                    Region::NewFile => return Err(missing("to verify, the region is needed: give it with --pmem")),
                },
                acknowledged: self.acknowledged.ok_or_else(|| {
                    missing("to verify, it is needed how many records were acknowledged: give it with --acknowledged")
                })?,
                run: self.run_id.ok_or_else(|| missing("to verify, the number of the run is needed: give it with --run-id"))?,
            }),
        })
    }

    /// An option that its role has no use for. Taken silently, it would promise something.
    fn stray(&self) -> Option<(&'static str, &'static str)> {
        let of_verify = [("--acknowledged", self.acknowledged.is_some()), ("--run-id", self.run_id.is_some())];
        let pmem = ("--pmem", self.pmem.is_some());
        let of_connecting = [
            ("--provider", self.provider.is_some()),
            ("--addr", self.addr.is_some()),
            ("--port", self.port.is_some()),
            ("--flush", self.flush.is_some()),
            ("--records", self.log.records.is_some()),
            ("--size", self.log.size.is_some()),
        ];
        let given = |options: &[(&'static str, bool)]| options.iter().find(|(_, given)| *given).map(|(name, _)| *name);
        match self.role {
            None => given(&of_verify).map(|option| ("without --role verify", option)),
            Some(Role::Target) => given(&of_verify).map(|option| ("to a target, only to --role verify", option)),
            Some(Role::Writer) => given(&of_verify)
                .map(|option| ("to a writer, only to --role verify", option))
                .or_else(|| given(&[pmem]).map(|option| ("to a writer: the region is the target's", option))),
            Some(Role::Verify) => given(&of_connecting).map(|option| ("to --role verify", option)),
        }
    }
}

fn provider_help() -> String {
    let names: Vec<_> = Provider::ALL.iter().map(|provider| provider.name()).collect();
    format!("What carries RDMA: {} [default: {}]", names.join(", "), Provider::Auto)
}

fn missing(sentence: &str) -> clap::Error {
    usage(ErrorKind::MissingRequiredArgument, sentence.to_owned())
}

fn usage(kind: ErrorKind, sentence: String) -> clap::Error {
    Options::command().error(kind, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arguments: &str) -> Result<Job, clap::Error> {
        job_in(arguments, Environment::default())
    }

    fn job_in(arguments: &str, environment: Environment) -> Result<Job, clap::Error> {
        Options::try_parse_from(["rpma-demo"].into_iter().chain(arguments.split_whitespace()))?.job(environment)
    }

    #[test]
    fn no_options_ask_for_ten_thousand_records_of_256_bytes_in_a_new_file() {
        let Job::Everything(all) = job("--provider rdma-core").unwrap() else { panic!("another job") };
        assert_eq!(all.layout, Layout::packed(10_000, 256));
        assert_eq!((all.addr, all.port, all.region, all.flush), (None, 0, Region::NewFile, None));
    }

    #[test]
    fn options_come_before_the_environment() {
        let environment = || Environment { addr: Some("10.0.0.1".into()), pmem: Some("/dev/dax0.0".into()) };
        let Job::Everything(all) = job_in("--provider rdma-core", environment()).unwrap() else { panic!("another job") };
        assert_eq!((all.addr.as_deref(), all.region), (Some("10.0.0.1"), Region::At("/dev/dax0.0".into())));
        let arguments = "--provider rdma-core --addr fd00::1 --pmem /x --flush visibility --timeout 5";
        let Job::Everything(all) = job_in(arguments, environment()).unwrap() else { panic!("another job") };
        assert_eq!((all.addr.as_deref(), all.region), (Some("fd00::1"), Region::At("/x".into())));
        assert_eq!((all.flush, all.timeout), (Some(FlushType::Visibility), Duration::from_secs(5)));
    }

    #[test]
    fn writer_takes_what_the_target_has_unless_it_is_told() {
        let Job::Writer(writer) = job("--role writer --provider rdma-core --addr h --port 1").unwrap() else {
            panic!("another job")
        };
        assert_eq!((writer.records, writer.record_bytes, writer.flush), (None, None, None));
    }

    #[test]
    fn verify_takes_path_count_and_run() {
        let parsed = job("--role verify --pmem /p --acknowledged 7 --run-id 00000000000000ff").unwrap();
        assert_eq!(parsed, Job::Verify(Verify { path: "/p".into(), acknowledged: 7, run: RunId(255) }));
    }

    #[test]
    fn every_bad_option_is_a_sentence_and_status_2() {
        let bad = [
            ("--records 0", "0 is not in 1.."),
            ("--records many", "invalid digit"),
            ("--size 31", "31 is not in 32..=16777216"),
            ("--size 16777217", "is not in 32..=16777216"),
            ("--records 18446744073709551615", "are more than any memory holds"),
            ("--flush durable", "possible values: persistent, visibility"),
            ("--role server", "possible values: target, writer, verify"),
            ("--provider verbs", "there is no RDMA provider"),
            ("--port 65536", "65536 is not in 0..=65535"),
            ("--timeout 0", "0 is not in 1..=86400"),
            ("--acknowledged 5", "--acknowledged means nothing without --role verify"),
            ("--role target --run-id 0123456789abcdef", "--run-id means nothing to a target"),
            ("--role writer --port 1", "give its address with --addr"),
            ("--role writer --addr h", "give its port, not 0, with --port"),
            ("--role writer --addr h --port 0", "give its port, not 0, with --port"),
            ("--role writer --addr h --port 1 --pmem /p", "the region is the target's"),
            ("--role verify --acknowledged 1 --run-id 0123456789abcdef", "give it with --pmem"),
            ("--role verify --pmem /p --run-id 0123456789abcdef", "give it with --acknowledged"),
            ("--role verify --pmem /p --acknowledged 1", "give it with --run-id"),
            ("--role verify --pmem /p --acknowledged 1 --run-id 1", "16 hexadecimal digits"),
            ("--role verify --pmem /p --acknowledged 0 --run-id 0123456789abcdef", "0 is not in 1.."),
            ("--role verify --pmem /p --size 64", "--size means nothing to --role verify"),
            ("--no-such-option", "unexpected argument"),
            ("extra", "unexpected argument"),
        ];
        for (arguments, sentence) in bad {
            let arguments = if arguments.contains("--provider") || arguments.contains("verify") {
                arguments.to_owned()
            } else {
                format!("{arguments} --provider rdma-core")
            };
            let error = job(&arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{arguments}");
            let text = error.to_string();
            assert!(text.starts_with("error: ") && text.contains(sentence), "{arguments}: {text}");
        }
    }

    #[test]
    fn help_says_what_the_kill_of_a_process_proves_and_what_it_does_not() {
        let help = Options::command().render_long_help().to_string();
        for sentence in
            ["What the kill of a process proves:", "What it does not prove:", "loss of power", "RPMA_TEST_ADDR", "RPMA_TEST_PMEM"]
        {
            assert!(help.contains(sentence), "{sentence}");
        }
    }

    #[test]
    fn command_line_is_well_formed() {
        Options::command().debug_assert();
    }
}
