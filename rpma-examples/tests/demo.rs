//! `rpma-demo` on a machine without an RDMA device: what it says then, and what it says to bad options.

use std::process::{Command, Output};

fn demo(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rpma-demo"));
    for variable in ["RPMA_PROVIDER", "RPMA_TEST_ADDR", "RPMA_TEST_PMEM", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command.args(arguments.split_whitespace()).output().expect("the demo starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("the demo speaks UTF-8")
}

#[test]
fn bad_option_is_a_sentence_and_status_2() {
    for (arguments, sentence) in [
        ("--size 8", "8 is not in 32..=16777216"),
        ("--records none", "invalid value 'none' for '--records <N>'"),
        ("--provider nothing", r#"there is no RDMA provider "nothing""#),
        ("--role writer --port 7204", "give its address with --addr"),
        ("--acknowledged 5", "--acknowledged means nothing without --role verify"),
    ] {
        let output = demo(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.starts_with("error: ") && text.contains(sentence), "{arguments}: {text}");
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}

/// `RPMA_PROVIDER` is as good as an option, and so is a bad one.
#[test]
fn bad_provider_in_the_environment_is_a_sentence_and_status_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_rpma-demo")).env("RPMA_PROVIDER", "nothing").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(r#"RPMA_PROVIDER names the RDMA provider "nothing", which there is not"#));
}

/// The loopback address is on no RDMA device, so this fails on every machine: with rdma-core, with a device, or without.
#[test]
fn address_on_no_device_is_status_1_and_names_what_is_missing() {
    for role in ["", "--role target ", "--role writer --port 7204 "] {
        let output = demo(&format!("{role}--provider rdma-core --timeout 10 --addr 127.0.0.1"));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{role}: {text}");
        assert!(text.contains("error: ") && text.contains("  caused by: "), "{role}: {text}");
        // The last is a writer's on a machine with a device: the way to loopback leads through it, and ends there.
        let names = ["rdma-core", "no RDMA device", "not permitted to use RDMA devices", "no route to 127.0.0.1"];
        let names_it = names.iter().any(|name| text.contains(name));
        assert!(names_it, "{role}: {text}");
        assert!(!text.contains("panicked"), "{role}: {text}");
    }
}

/// The whole job, on a machine with Rust alone.
#[test]
fn every_acknowledged_record_is_intact_after_the_target_was_killed_on_the_software_provider() {
    let output = demo("--provider soft --records 500");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert!(text.contains("verified: 500/500 acknowledged records intact after the target was killed"), "{text}");
    assert!(text.contains("flush: native, visibility"), "{text}");
}

#[test]
fn verify_of_what_is_not_there_is_status_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let output = demo(&format!("--role verify --pmem {} --acknowledged 1 --run-id 0123456789abcdef", path.display()));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with(&format!("error: the region {} is not there\n  caused by: ", path.display())));
}

#[test]
fn help_says_what_a_kill_proves_and_what_it_does_not() {
    let output = demo("--help");
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("What the kill of a process proves:") && help.contains("What it does not prove:"), "{help}");
}
