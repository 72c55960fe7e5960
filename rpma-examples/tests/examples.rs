//! Runs every example without arguments, as a newcomer would, and with its two sides apart, as on two machines.
#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The names of all examples, by their sources.
fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// Where cargo has put the programs: beside the folder of the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}

/// An example that runs; it is killed with this.
struct Running {
    name: String,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program(name));
        command.args(arguments).env("RPMA_PROVIDER", "soft").env_remove("EXAMPLE_PMEM");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { name: format!("{name} {arguments:?}"), child, stdout }
    }

    /// What it says until it ends, which it has to do well and in time.
    fn output(mut self) -> String {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if start.elapsed() > LIMIT {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let (mut output, mut errors) = (String::new(), String::new());
        self.stdout.read_to_string(&mut output).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(status.is_some_and(|status| status.success()), "{}: {status:?}\n{output}{errors}", self.name);
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of one that has ended there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file of `03-write-to-persistent` is on a disk, and so the software provider makes it durable.
fn assert_flushed_to_persistence(name: &str, client: &str) {
    let is_about_it = name.ends_with("write-to-persistent");
    assert!(!is_about_it || client.contains("written and flushed: Persistent, Native"), "{name}: {client}");
}

#[test]
fn every_example_does_its_work_on_the_software_provider() {
    let names = names();
    assert!(names.len() >= 12, "examples are missing: {names:?}");
    for name in names {
        let output = Running::start(&name, &[]).output();
        assert!(output.lines().count() >= 2, "{name} says nothing: {output}");
        assert_flushed_to_persistence(&name, &output);
    }
}

/// As the page has it for two machines. `12-reconnect` starts its servers itself.
#[test]
fn every_example_does_its_work_with_each_side_in_a_process_of_its_own() {
    for name in names().into_iter().filter(|name| name != "12-reconnect") {
        let mut server = Running::start(&name, &["--addr", "127.0.0.1", "--role", "server"]);
        // "server: listening on 127.0.0.1:40000, device …"
        let mut line = String::new();
        server.stdout.read_line(&mut line).unwrap();
        let port = line.split_once("127.0.0.1:").and_then(|(_, rest)| rest.split_once(',')).map(|(port, _)| port);
        let port = port.unwrap_or_else(|| panic!("{name}: the server does not say where it listens: {line}"));
        let client = Running::start(&name, &["--addr", "127.0.0.1", "--port", port, "--role", "client"]).output();
        assert_flushed_to_persistence(&name, &client);
        server.output();
    }
}

#[test]
fn index_tells_what_every_example_teaches() {
    let index = include_str!("../README.md");
    for name in names() {
        assert!(index.contains(&format!("| [`{name}`](examples/{name}.rs) | ")), "{name} has no row");
    }
}
