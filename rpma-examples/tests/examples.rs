//! Runs every example without arguments, as a newcomer would.
#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

#[test]
fn every_example_does_its_work_on_the_software_provider() {
    let names = names();
    assert!(names.len() >= 12, "examples are missing: {names:?}");
    for name in names {
        let mut command = Command::new(program(&name));
        command.env("RPMA_PROVIDER", "soft").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if start.elapsed() > LIMIT {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let (mut output, mut errors) = (String::new(), String::new());
        child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(status.is_some_and(|status| status.success()), "{name}: {status:?}\n{output}{errors}");
        assert!(output.lines().count() >= 2, "{name} says nothing: {output}");
    }
}

#[test]
fn index_tells_what_every_example_teaches() {
    let index = include_str!("../README.md");
    for name in names() {
        assert!(index.contains(&format!("| [`{name}`](examples/{name}.rs) | ")), "{name} has no row");
    }
}
