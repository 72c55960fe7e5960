//! Standard output: a line at a time, and an error where `println!` would panic.

use std::fmt;
use std::io::{self, Write};

/// Standard output cannot be written: a full disk, or a closed pipe.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written")]
pub(crate) struct OutputError(#[source] io::Error);

/// Writes a line, which is out when this returns.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(OutputError)
}
