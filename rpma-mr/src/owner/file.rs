//! A mapped file.
#![expect(unsafe_code, reason = "copies from and to the mapping, and implements the unsafe trait")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

use super::mapping::Mapping;
use super::{Backing, MapError, RegionOwner};
use crate::copy::AccessError;

/// A file, mapped as a whole or from its start, and shared: what is written to it is in the file.
///
/// Other processes may map and change the same file at any time, so it never lends slices; [`read_at`](Self::read_at) and
/// [`write_at`](Self::write_at) copy.
///
/// ```
/// use rpma_mr::{Device, MappedFile, ProtectionDomain, Usage};
///
/// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("volume");
/// let file = MappedFile::create(&path, 4096)?; // made, and its blocks allocated
/// let region = pd.register(file, Usage::WRITE_DST)?;
/// region.write_at(0, b"in the file")?; // as what a peer writes
/// let file = region.deregister()?;
/// assert_eq!((file.len_bytes(), file.path()), (4096, path.as_path()));
/// assert!(std::fs::read(&path)?.starts_with(b"in the file"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Persistent memory
///
/// Where the file system gives it (ext4 and XFS mounted with `-o dax` on persistent memory), the mapping is synchronous, and
/// [`is_map_sync`](Self::is_map_sync) says so: the pages are the persistent memory itself, and data is durable once it left the
/// processor's caches. Elsewhere the pages are a cache, and only `msync(2)` or `fsync(2)` makes data durable.
///
/// Whether a device can pin the file's pages depends on the kernel; if not, the error of the registration names what works.
///
/// # Truncation
///
/// The file's blocks are allocated before it is mapped (`posix_fallocate(3)`), so that touching it cannot fail for lack of room.
/// But whoever may write the file can also truncate it. Then whatever touches the mapping past the file's new end, `read_at` and
/// `write_at` too, **is killed with SIGBUS**, and an RDMA device goes on to use the pages, which are no longer the file's. The
/// length is checked once more directly before a registration, but no check can prevent that it happens later: map files that
/// nobody else can write.
#[derive(Debug)]
pub struct MappedFile {
    mapping: Mapping,
    len_bytes: usize,
    writable: bool,
    is_map_sync: bool,
    file: File,
    path: PathBuf,
}

impl MappedFile {
    /// Makes the file if it is not there yet, gives it at least `len_bytes` bytes, and maps that many.
    ///
    /// What is in the file stays; a longer file stays as long. A new file is readable and writable for everyone whom the process's
    /// umask does not exclude.
    ///
    /// # Errors
    ///
    /// [`MapError`]: the path, the file system's lack of room, or the mapping.
    pub fn create(path: impl AsRef<Path>, len_bytes: usize) -> Result<Self, MapError> {
        let path = path.as_ref().to_owned();
        if len_bytes == 0 {
            return Err(MapError::Empty { path: Some(path) });
        }
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(|source| MapError::Open { path: path.clone(), source })?;
        ordinary(&file, &path)?;
        Self::map(file, path, len_bytes, true)
    }

    /// Maps a whole file that is there already, for reading and writing.
    ///
    /// # Errors
    ///
    /// [`MapError`]: the path, an empty file, the file system's lack of room for the file's holes, or the mapping.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MapError> {
        Self::open_whole(path.as_ref(), true)
    }

    /// Maps a whole file for reading. It can be registered for `READ_SRC` and `SEND`, with Linux 6.2 or newer.
    ///
    /// # Errors
    ///
    /// [`MapError`]: the path, an empty file, or the mapping.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, MapError> {
        Self::open_whole(path.as_ref(), false)
    }

    fn open_whole(path: &Path, writable: bool) -> Result<Self, MapError> {
        let path = path.to_owned();
        let opened = OpenOptions::new().read(true).write(writable).open(&path);
        let file = opened.map_err(|source| MapError::Open { path: path.clone(), source })?;
        let file_bytes = ordinary(&file, &path)?;
        let len_bytes = usize::try_from(file_bytes).unwrap_or(usize::MAX);
        if len_bytes == 0 {
            return Err(MapError::Empty { path: Some(path) });
        }
        Self::map(file, path, len_bytes, writable)
    }

    fn map(file: File, path: PathBuf, len_bytes: usize, writable: bool) -> Result<Self, MapError> {
        if isize::try_from(len_bytes).is_err() {
            return Err(MapError::Map { path: Some(path), len_bytes, source: io::ErrorKind::OutOfMemory.into() });
        }
        if writable && let Err(source) = allocate(&file, len_bytes as u64) {
            return Err(MapError::Allocate { path, len_bytes, source });
        }
        match Mapping::shared(&file, len_bytes, writable) {
            Ok((mapping, is_map_sync)) => Ok(Self { mapping, len_bytes, writable, is_map_sync, file, path }),
            Err(source) => Err(MapError::Map { path: Some(path), len_bytes, source }),
        }
    }

    /// How many bytes are mapped.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether the mapping is synchronous (`MAP_SYNC`, `mmap(2)`): the pages are persistent memory.
    #[must_use]
    pub const fn is_map_sync(&self) -> bool {
        self.is_map_sync
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies `dst.len()` bytes out, from `offset_bytes` on. Others may write the file meanwhile, so the copy can be torn.
    ///
    /// A truncated file kills the process; see the type's documentation.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`]; `dst` is then untouched.
    #[inline]
    pub fn read_at(&self, offset_bytes: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        // SAFETY: used within this call; a mapped file never lends references.
        unsafe { self.mapping.range(self.len_bytes) }.read_at(offset_bytes, dst)
    }

    /// Copies `src` in, from `offset_bytes` on. Others may read and write the file meanwhile.
    ///
    /// A truncated file kills the process; see the type's documentation.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`], or [`AccessError::ReadOnly`] if it was opened so; nothing is then written.
    #[inline]
    pub fn write_at(&self, offset_bytes: usize, src: &[u8]) -> Result<(), AccessError> {
        // SAFETY: used within this call; a mapped file never lends references.
        unsafe { self.mapping.range(self.len_bytes) }.write_at(offset_bytes, src)
    }
}

// SAFETY: one mapping with the rights told, which stays where it is until the owner is dropped. No reference into it is ever lent,
// and its own copying methods need the owner, which the region does not lend.
unsafe impl RegionOwner for MappedFile {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.mapping.base(), self.len_bytes)
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn backing(&self) -> Backing {
        if self.is_map_sync { Backing::DaxFile } else { Backing::File }
    }

    fn verify(&self) -> io::Result<()> {
        let file_bytes = self.file.metadata()?.len();
        if file_bytes < self.len_bytes as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} was truncated after it was mapped: it has {file_bytes} bytes, {} are mapped",
                    self.path.display(),
                    self.len_bytes
                ),
            ));
        }
        Ok(())
    }
}

/// The length of an ordinary file; everything else is an error.
fn ordinary(file: &File, path: &Path) -> Result<u64, MapError> {
    let metadata = file.metadata().map_err(|source| MapError::Open { path: path.to_owned(), source })?;
    if metadata.is_file() {
        Ok(metadata.len())
    } else {
        Err(MapError::NotAFile { path: path.to_owned(), is_char_device: metadata.file_type().is_char_device() })
    }
}

/// Gives the file's first `len_bytes` bytes their blocks: `posix_fallocate(3)`.
fn allocate(file: &File, len_bytes: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, len_bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            // 9p and some network file systems have no such call.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return allocate_by_writing(file, len_bytes),
            Err(e) => return Err(e.into()),
        }
    }
}

/// What `posix_fallocate(3)` does where the file system has no call for it: a byte is written to each block that might be a hole.
/// As there, what another process writes at the same moment can be lost.
fn allocate_by_writing(file: &File, len_bytes: u64) -> io::Result<()> {
    /// No file system has smaller blocks that it could fail to allocate one by one in a mapping: mappings are made of pages.
    const STEP_BYTES: u64 = 4096;
    let file_bytes = file.metadata()?.len();
    // Not to fill a disk only to find that it is too small. Others may take the room meanwhile: then a write says so.
    let room = fstatvfs(file)?;
    if len_bytes.saturating_sub(file_bytes) > room.f_bavail.saturating_mul(room.f_frsize) {
        return Err(Errno::NOSPC.into());
    }
    // The last byte of each step, so that the file gets its length too.
    let mut end = 0;
    while end < len_bytes {
        end = (end + STEP_BYTES).min(len_bytes);
        let last = end - 1;
        let mut byte = [0];
        if last < file_bytes {
            file.read_exact_at(&mut byte, last)?;
            // What is not zero is no hole.
            if byte != [0] {
                continue;
            }
        }
        file.write_all_at(&[0], last)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn created_file_has_its_length_and_its_blocks() {
        let dir = scratch();
        let path = dir.path().join("new");
        let file = MappedFile::create(&path, 100_000).unwrap();
        assert_eq!(file.len_bytes(), 100_000);
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 100_000);
        assert!(metadata.blocks() * 512 >= 100_000, "{} blocks", metadata.blocks());
    }

    #[test]
    fn what_is_written_is_in_the_file_and_the_reverse() {
        let dir = scratch();
        let path = dir.path().join("f");
        let file = MappedFile::create(&path, 8192).unwrap();
        file.write_at(4000, &[7; 200]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[4000..4200], [7; 200]);
        let other = OpenOptions::new().write(true).open(&path).unwrap();
        other.write_all_at(b"xyz", 10).unwrap();
        let mut copy = [0; 3];
        file.read_at(10, &mut copy).unwrap();
        assert_eq!(&copy, b"xyz");
    }

    #[test]
    fn creating_over_a_file_keeps_its_content_and_its_length() {
        let dir = scratch();
        let path = dir.path().join("f");
        std::fs::write(&path, [9; 5000]).unwrap();
        assert_eq!(MappedFile::create(&path, 100).unwrap().len_bytes(), 100);
        assert_eq!(std::fs::read(&path).unwrap(), [9; 5000]);
        let longer = MappedFile::create(&path, 6000).unwrap();
        let mut copy = [1; 2];
        longer.read_at(4999, &mut copy).unwrap();
        assert_eq!(copy, [9, 0]);
    }

    #[test]
    fn opening_maps_the_whole_file() {
        let dir = scratch();
        let path = dir.path().join("f");
        std::fs::write(&path, [3; 4097]).unwrap();
        for file in [MappedFile::open(&path).unwrap(), MappedFile::open_read_only(&path).unwrap()] {
            assert_eq!((file.len_bytes(), file.range().1), (4097, 4097));
        }
    }

    #[test]
    fn file_opened_for_reading_takes_no_write() {
        let dir = scratch();
        let path = dir.path().join("f");
        std::fs::write(&path, [3; 10]).unwrap();
        let file = MappedFile::open_read_only(&path).unwrap();
        assert!(!file.is_writable());
        assert_eq!(file.write_at(0, &[1]), Err(AccessError::ReadOnly));
        let mut copy = [0; 10];
        file.read_at(0, &mut copy).unwrap();
        assert_eq!(copy, [3; 10]);
    }

    #[test]
    fn paths_that_are_no_file_of_some_length_tell_which_kind_they_are() {
        let dir = scratch();
        let empty = dir.path().join("empty");
        std::fs::write(&empty, []).unwrap();
        assert!(matches!(MappedFile::open(&empty), Err(MapError::Empty { path: Some(_) })));
        assert!(matches!(MappedFile::create(&empty, 0), Err(MapError::Empty { path: Some(_) })));
        assert!(matches!(MappedFile::open(dir.path().join("none")), Err(MapError::Open { .. })));
        let directory = MappedFile::open_read_only(dir.path()).unwrap_err();
        assert!(matches!(directory, MapError::NotAFile { is_char_device: false, .. }), "{directory}");
        let device = MappedFile::open("/dev/null").unwrap_err();
        assert!(device.to_string().contains("DaxDevice"), "{device}");
    }

    #[test]
    fn file_truncated_after_mapping_is_not_fit_for_registration() {
        let dir = scratch();
        let path = dir.path().join("f");
        let file = MappedFile::create(&path, 8192).unwrap();
        file.verify().unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(8191).unwrap();
        let text = file.verify().unwrap_err().to_string();
        assert!(text.contains("truncated") && text.contains("8191") && text.contains("8192"), "{text}");
    }

    #[test]
    fn allocating_by_writing_fills_holes_and_keeps_content() {
        let dir = scratch();
        let path = dir.path().join("f");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        // Its last byte is one of those that are written where there is a hole.
        file.write_all_at(b"text", 8188).unwrap();
        file.set_len(20_000).unwrap();
        allocate_by_writing(&file, 30_001).unwrap();
        let mut expected = vec![0; 30_001];
        expected[8188..8192].copy_from_slice(b"text");
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert!(file.metadata().unwrap().blocks() * 512 >= 28_672);
    }

    #[test]
    fn allocating_more_than_there_is_room_for_is_an_error_before_mapping() {
        let dir = scratch();
        let huge = 1usize << 60;
        let path = dir.path().join("f");
        let error = MappedFile::create(&path, huge).unwrap_err();
        assert!(matches!(error, MapError::Allocate { len_bytes, .. } if len_bytes == huge), "{error:?}");
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(allocate_by_writing(&file, huge as u64).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
