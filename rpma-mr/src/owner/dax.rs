//! A DAX device: persistent memory without a file system.
#![expect(unsafe_code, reason = "copies from and to the mapping, and implements the unsafe trait")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::mapping::Mapping;
use super::{Backing, MapError, RegionOwner};
use crate::copy::AccessError;

/// A DAX device (`/dev/dax0.0`), mapped from its start.
///
/// The pages are the memory itself: data is durable once it left the processor's caches, and devices can register it without
/// on-demand paging. Other processes may map the same device, so it never lends slices.
///
/// Not run as a test, because it takes such a device:
///
/// ```no_run
/// use rpma_mr::DaxDevice;
///
/// let memory = DaxDevice::open("/dev/dax0.0")?;
/// println!("{} bytes, in pages of {}", memory.len_bytes(), memory.align_bytes());
/// memory.write_at(0, b"a header")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DaxDevice {
    mapping: Mapping,
    len_bytes: usize,
    align_bytes: usize,
    path: PathBuf,
}

impl DaxDevice {
    /// Maps a whole device. Its length comes from the kernel (`/sys/dev/char/MAJOR:MINOR/size`).
    ///
    /// # Errors
    ///
    /// [`MapError`]: the path, something that is no DAX device, a length that the kernel does not tell, or the mapping.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MapError> {
        Self::map(path.as_ref(), None)
    }

    /// Maps the first `len_bytes` bytes of a device. That works without `/sys` too.
    ///
    /// ```
    /// use rpma_mr::{DaxDevice, MapError};
    ///
    /// # let file = tempfile::NamedTempFile::new()?;
    /// let refused = DaxDevice::open_with_len(file.path(), 4096); // an ordinary file
    /// assert!(matches!(refused, Err(MapError::NotADaxDevice { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MapError`]: the path, something that is no DAX device, a device that is known to be shorter, or the mapping.
    pub fn open_with_len(path: impl AsRef<Path>, len_bytes: usize) -> Result<Self, MapError> {
        Self::map(path.as_ref(), Some(len_bytes))
    }

    fn map(path: &Path, len_bytes: Option<usize>) -> Result<Self, MapError> {
        let path = path.to_owned();
        if len_bytes == Some(0) {
            return Err(MapError::Empty { path: Some(path) });
        }
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|source| MapError::Open { path: path.clone(), source })?;
        let sysfs = match sysfs_folder(&file) {
            Ok(Some(folder)) => folder,
            Ok(None) => return Err(MapError::NotADaxDevice { path }),
            Err(source) => return Err(MapError::Open { path, source }),
        };
        if is_dax(&sysfs) == Some(false) {
            return Err(MapError::NotADaxDevice { path });
        }

        let size = size_bytes(&sysfs);
        let len_bytes = match (len_bytes, size) {
            (Some(len_bytes), Ok(available_bytes)) if len_bytes as u64 > available_bytes => {
                return Err(MapError::TooLong { path, len_bytes, available_bytes });
            }
            (Some(len_bytes), _) => len_bytes,
            (None, Ok(0)) => return Err(MapError::Empty { path: Some(path) }),
            (None, Ok(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX),
            (None, Err(source)) => return Err(MapError::UnknownLength { path, source }),
        };

        let align_bytes = align_bytes(&sysfs);
        // The device takes only mappings of whole units (`check_vma`, drivers/dax/device.c).
        let refused = |source| MapError::Map { path: Some(path.clone()), len_bytes, source };
        let mapped_bytes = len_bytes.checked_next_multiple_of(align_bytes).filter(|len| isize::try_from(*len).is_ok());
        let mapped_bytes = mapped_bytes.ok_or_else(|| refused(io::ErrorKind::OutOfMemory.into()))?;
        let (mapping, _) = Mapping::shared(&file, mapped_bytes, true).map_err(refused)?;
        // The mapping keeps the device open.
        Ok(Self { mapping, len_bytes, align_bytes, path })
    }

    /// How many bytes are mapped for use.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The size of the units that the device is mapped in, in bytes; 1 if the kernel does not tell.
    #[must_use]
    pub const fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies `dst.len()` bytes out, from `offset_bytes` on. Others may write the device meanwhile, so the copy can be torn.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`]; `dst` is then untouched.
    #[inline]
    pub fn read_at(&self, offset_bytes: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        // SAFETY: used within this call; a DAX device never lends references.
        unsafe { self.mapping.range(self.len_bytes) }.read_at(offset_bytes, dst)
    }

    /// Copies `src` in, from `offset_bytes` on. Others may read and write the device meanwhile.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`]; nothing is then written.
    #[inline]
    pub fn write_at(&self, offset_bytes: usize, src: &[u8]) -> Result<(), AccessError> {
        // SAFETY: used within this call; a DAX device never lends references.
        unsafe { self.mapping.range(self.len_bytes) }.write_at(offset_bytes, src)
    }
}

// SAFETY: one readable and writable mapping, at least as long as told, which stays where it is until the owner is dropped. No
// reference into it is ever lent, and its own copying methods need the owner, which the region does not lend.
unsafe impl RegionOwner for DaxDevice {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.mapping.base(), self.len_bytes)
    }

    fn backing(&self) -> Backing {
        Backing::DaxDevice
    }
}

/// The kernel's folder about a character device; `None` for everything else.
fn sysfs_folder(file: &File) -> io::Result<Option<PathBuf>> {
    let metadata = file.metadata()?;
    if !metadata.file_type().is_char_device() {
        return Ok(None);
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    Ok(Some(PathBuf::from(format!("/sys/dev/char/{major}:{minor}"))))
}

/// Whether the device belongs to the kernel's DAX subsystem; `None` if the kernel does not tell (no `/sys`).
fn is_dax(sysfs: &Path) -> Option<bool> {
    let subsystem = fs::read_link(sysfs.join("subsystem")).ok()?;
    Some(subsystem.file_name().is_some_and(|name| name == "dax"))
}

fn size_bytes(sysfs: &Path) -> io::Result<u64> {
    number(&sysfs.join("size"))
}

/// The unit of mappings. Since Linux 5.10 the device tells it, before only its region.
fn align_bytes(sysfs: &Path) -> usize {
    ["align", "dax_region/align", "device/align"]
        .iter()
        .find_map(|name| number(&sysfs.join(name)).ok())
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(1)
        .max(1)
}

fn number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|e| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} holds {:?}, which is no number: {e}", path.display(), text.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_dax_device_is_told_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, [0; 10]).unwrap();
        for path in [file.as_path(), Path::new("/dev/zero")] {
            // Where there is no /sys, nobody can tell that /dev/zero is no DAX device, but its length is not known either.
            match DaxDevice::open(path) {
                Err(MapError::NotADaxDevice { .. } | MapError::UnknownLength { .. }) => {}
                other => panic!("{}: {other:?}", path.display()),
            }
        }
        assert!(matches!(DaxDevice::open(dir.path().join("none")), Err(MapError::Open { .. })));
        assert!(matches!(DaxDevice::open_with_len(&file, 0), Err(MapError::Empty { .. })));
        assert!(matches!(DaxDevice::open_with_len(&file, 5), Err(MapError::NotADaxDevice { .. })));
    }

    #[test]
    fn size_and_alignment_are_read_as_the_kernel_writes_them() {
        let sysfs = tempfile::tempdir().unwrap();
        let sysfs = sysfs.path();
        assert_eq!(align_bytes(sysfs), 1);
        assert_eq!(size_bytes(sysfs).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(sysfs.join("size"), "528482304\n").unwrap();
        std::fs::create_dir(sysfs.join("dax_region")).unwrap();
        std::fs::write(sysfs.join("dax_region/align"), "2097152\n").unwrap();
        assert_eq!((size_bytes(sysfs).unwrap(), align_bytes(sysfs)), (528_482_304, 2_097_152));
        std::fs::write(sysfs.join("align"), "4096\n").unwrap();
        assert_eq!(align_bytes(sysfs), 4096);
        std::fs::write(sysfs.join("size"), "many\n").unwrap();
        assert!(size_bytes(sysfs).unwrap_err().to_string().contains("many"));
    }

    #[test]
    fn dax_devices_are_known_by_their_subsystem() {
        let sysfs = tempfile::tempdir().unwrap();
        assert_eq!(is_dax(sysfs.path()), None);
        std::os::unix::fs::symlink("../../../bus/dax", sysfs.path().join("subsystem")).unwrap();
        assert_eq!(is_dax(sysfs.path()), Some(true));
        std::fs::remove_file(sysfs.path().join("subsystem")).unwrap();
        std::os::unix::fs::symlink("../../class/mem", sysfs.path().join("subsystem")).unwrap();
        assert_eq!(is_dax(sysfs.path()), Some(false));
    }
}
