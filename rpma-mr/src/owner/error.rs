//! Why memory could not be had.

use std::io;
use std::path::PathBuf;

use crate::ErrorCode;

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum MapError {
    /// No bytes were asked for, or the file has none.
    #[error("cannot map 0 bytes{}", of(.path.as_ref()))]
    Empty { path: Option<PathBuf> },
    /// The file could not be opened, or not be looked at.
    #[error("cannot open {}", .path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The path is one for devices, and there is none. No file is made in its place.
    #[error("there is no device {}: `ndctl list` shows those there are", .path.display())]
    NoDevice { path: PathBuf, source: io::Error },
    /// The path names something that is no ordinary file.
    #[error("{} is not an ordinary file{}", .path.display(), if *.is_char_device { ": it is a device, which DaxDevice maps" } else { "" })]
    NotAFile { path: PathBuf, is_char_device: bool },
    /// The path names something that is no DAX device.
    #[error("{} is not a DAX device: those are character devices like /dev/dax0.0 (`ndctl create-namespace -m devdax` makes one)", .path.display())]
    NotADaxDevice { path: PathBuf },
    /// The kernel does not tell how long the device is.
    #[error("cannot find out the length of {}: is /sys mounted? The length can also be given", .path.display())]
    UnknownLength { path: PathBuf, source: io::Error },
    /// More was asked for than there is.
    #[error("{} has {available_bytes} bytes: {len_bytes} cannot be mapped", .path.display())]
    TooLong { path: PathBuf, len_bytes: usize, available_bytes: u64 },
    /// The file system has no room, or cannot give it. Nothing was mapped, because touching a page without room kills a process.
    #[error("cannot allocate {len_bytes} bytes for {}", .path.display())]
    Allocate { path: PathBuf, len_bytes: usize, source: io::Error },
    /// The kernel refused to map it.
    #[error("cannot map {len_bytes} bytes{}", of(.path.as_ref()))]
    Map { path: Option<PathBuf>, len_bytes: usize, source: io::Error },
}

fn of(path: Option<&PathBuf>) -> String {
    path.map(|path| format!(" of {}", path.display())).unwrap_or_default()
}

impl MapError {
    /// The C library's code for this error. It has no call that could return it.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Empty { .. } | Self::NotAFile { .. } | Self::NotADaxDevice { .. } | Self::TooLong { .. } => {
                ErrorCode::InvalidArgument
            }
            Self::Map { source, .. } if source.kind() == io::ErrorKind::OutOfMemory => ErrorCode::NoMemory,
            Self::Open { .. } | Self::NoDevice { .. } | Self::UnknownLength { .. } | Self::Allocate { .. } | Self::Map { .. } => {
                ErrorCode::Provider
            }
        }
    }
}
