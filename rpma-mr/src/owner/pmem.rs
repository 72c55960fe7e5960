//! Persistent memory by path, whatever it is.
#![expect(unsafe_code, reason = "implements the unsafe trait by passing on")]

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::ptr::NonNull;

use super::{Backing, DaxDevice, MapError, MappedFile, RegionOwner};
use crate::copy::AccessError;

/// Persistent memory that a path names: a DAX device or a file.
///
/// For programs whose users say where the memory is.
///
/// ```
/// use rpma_mr::PersistentMemory;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("volume"); // or /dev/dax0.0
/// let memory = PersistentMemory::open(&path, 4096)?;
/// assert_eq!(memory.len_bytes(), 4096);
/// match &memory {
///     PersistentMemory::Device(device) => println!("{}, in pages of {}", device.path().display(), device.align_bytes()),
///     PersistentMemory::File(file) => assert_eq!(file.is_map_sync(), memory.is_direct()),
///     _ => println!("something newer"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum PersistentMemory {
    /// A DAX device.
    Device(DaxDevice),
    /// A file. Whether it is on persistent memory, [`MappedFile::is_map_sync`] tells.
    File(MappedFile),
}

/// Whether the path is one for device files.
fn is_device_path(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

impl PersistentMemory {
    /// Maps the first `len_bytes` bytes of the DAX device at `path`, or of the file there, which is made or made longer if need be.
    ///
    /// Any file is taken, on ordinary memory or a disk too: [`is_direct`](Self::is_direct) tells whether it is persistent memory. Below
    /// `/dev`, but for `/dev/shm`, no file is made: a device that is not there stays an error.
    ///
    /// # Errors
    ///
    /// [`MapError`], as [`DaxDevice::open_with_len`] and [`MappedFile::create`].
    pub fn open(path: impl AsRef<Path>, len_bytes: usize) -> Result<Self, MapError> {
        let path = path.as_ref();
        match path.metadata() {
            Ok(metadata) if metadata.file_type().is_char_device() => DaxDevice::open_with_len(path, len_bytes).map(Self::Device),
            Err(source) if source.kind() == io::ErrorKind::NotFound && is_device_path(path) => {
                Err(MapError::NoDevice { path: path.to_owned(), source })
            }
            // What is not there is made; what else is wrong with the path, opening tells.
            _ => MappedFile::create(path, len_bytes).map(Self::File),
        }
    }

    /// Whether the pages are persistent memory themselves, and not a cache of something slower.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        match self {
            Self::Device(_) => true,
            Self::File(file) => file.is_map_sync(),
        }
    }

    /// How many bytes are mapped.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        match self {
            Self::Device(device) => device.len_bytes(),
            Self::File(file) => file.len_bytes(),
        }
    }

    /// Copies `dst.len()` bytes out, from `offset_bytes` on.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`]; `dst` is then untouched.
    pub fn read_at(&self, offset_bytes: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        match self {
            Self::Device(device) => device.read_at(offset_bytes, dst),
            Self::File(file) => file.read_at(offset_bytes, dst),
        }
    }

    /// Copies `src` in, from `offset_bytes` on.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`]; nothing is then written.
    pub fn write_at(&self, offset_bytes: usize, src: &[u8]) -> Result<(), AccessError> {
        match self {
            Self::Device(device) => device.write_at(offset_bytes, src),
            Self::File(file) => file.write_at(offset_bytes, src),
        }
    }
}

// SAFETY: every method passes on to an owner that fulfils the contract, and which of the two it is never changes once it is made.
unsafe impl RegionOwner for PersistentMemory {
    fn range(&self) -> (NonNull<u8>, usize) {
        match self {
            Self::Device(device) => device.range(),
            Self::File(file) => file.range(),
        }
    }

    fn is_writable(&self) -> bool {
        match self {
            Self::Device(device) => device.is_writable(),
            Self::File(file) => file.is_writable(),
        }
    }

    fn backing(&self) -> Backing {
        match self {
            Self::Device(device) => device.backing(),
            Self::File(file) => file.backing(),
        }
    }

    fn verify(&self) -> io::Result<()> {
        match self {
            Self::Device(device) => device.verify(),
            Self::File(file) => file.verify(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_that_is_not_there_is_an_error_and_no_file_is_made_in_its_place() {
        let path = Path::new("/dev/dax99.99");
        let error = PersistentMemory::open(path, 4096).unwrap_err();
        assert!(matches!(&error, MapError::NoDevice { .. }), "{error:?}");
        assert!(error.to_string().contains("ndctl list"), "{error}");
        assert!(!path.exists());
        assert!(!is_device_path(Path::new("/dev/shm/file")));
    }

    #[test]
    fn path_of_a_file_is_mapped_as_a_file_and_made_if_need_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        for len in [4096, 10_000] {
            let memory = PersistentMemory::open(&path, len).unwrap();
            assert!(matches!(&memory, PersistentMemory::File(_)));
            assert_eq!(memory.len_bytes(), len);
            memory.write_at(len - 1, &[5]).unwrap();
        }
        let mut copy = [0];
        PersistentMemory::open(&path, 10_000).unwrap().read_at(4095, &mut copy).unwrap();
        assert_eq!(copy, [5]);
    }

    #[test]
    fn path_of_a_character_device_is_not_taken_for_a_file() {
        let error = PersistentMemory::open("/dev/null", 4096).unwrap_err();
        assert!(!matches!(error, MapError::NotAFile { .. }), "{error:?}");
    }
}
