//! What can be registered: owners of memory.
#![expect(unsafe_code, reason = "declares the unsafe trait; and passes it on for boxes")]

mod anon;
mod dax;
mod error;
mod file;
mod mapping;
mod pmem;

use std::fmt;
use std::io;
use std::ptr::NonNull;

pub use anon::AnonPages;
pub use dax::DaxDevice;
pub use error::MapError;
pub use file::MappedFile;
pub use pmem::PersistentMemory;

/// Something that owns one range of memory, and hands it to a region for as long as that is registered.
///
/// [`ProtectionDomain::register`](crate::ProtectionDomain::register) takes the owner, asks for its [`range`](Self::range) once, and
/// keeps the owner, without lending it, until the range is deregistered; if it cannot be deregistered, for ever.
///
/// The library's own owners are [`AnonPages`], [`MappedFile`], [`DaxDevice`] and [`PersistentMemory`]. For regions of one type
/// whatever their memory is, register a `Box<dyn RegionOwner>`.
///
/// ```
/// use rpma_mr::{AnonPages, Device, LocalMr, MappedFile, ProtectionDomain, RegionOwner, Usage};
///
/// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let file = tempfile::NamedTempFile::new()?;
/// let owners: [Box<dyn RegionOwner>; 2] =
///     [Box::new(AnonPages::new(4096)?), Box::new(MappedFile::create(file.path(), 8192)?)];
/// let mut regions: Vec<LocalMr<Box<dyn RegionOwner>>> = Vec::new();
/// for owner in owners {
///     regions.push(pd.register(owner, Usage::READ_SRC)?);
/// }
/// assert_eq!(regions[1].len_bytes(), 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
///
/// From the moment that the owner is handed over until it is dropped or handed back:
///
/// - [`range`](Self::range) is one mapped range, valid for reads, and for writes unless [`is_writable`](Self::is_writable) says
///   `false`. Its address and length stay what they were, also when the owner is moved.
/// - **No reference into the range exists and no safe code can reach it by another way**: not through a copy of the owner, not
///   through a global, not through a reference that was given out earlier. The device, a peer and the region's own methods write it
///   at any time. That excludes owners that are unique pointers to the compiler, such as `Box<[u8]>`: hold a raw pointer instead.
/// - Other processes that map the same memory are outside of this contract: the memory may change under us anyway.
///
/// The methods do not panic and always answer the same.
pub unsafe trait RegionOwner: Send + 'static {
    /// The address and the length in bytes.
    fn range(&self) -> (NonNull<u8>, usize);

    /// Whether the range may be written. If not, only `READ_SRC` and `SEND` can be registered.
    fn is_writable(&self) -> bool {
        true
    }

    /// What the memory is, as far as error messages depend on it.
    fn backing(&self) -> Backing {
        Backing::Other
    }

    /// Called directly before the registration: a last look at whether the memory is still what it was.
    ///
    /// # Errors
    ///
    /// Whatever makes the memory unfit: it is the source of [`RegisterError::Owner`](crate::RegisterError::Owner).
    fn verify(&self) -> io::Result<()> {
        Ok(())
    }
}

// SAFETY: every method passes on to the owner in the box. Moving the box does not even move that owner, and its range does not lie
// inside of itself, because it stays where it is when the owner is moved.
unsafe impl<M: RegionOwner + ?Sized> RegionOwner for Box<M> {
    fn range(&self) -> (NonNull<u8>, usize) {
        (**self).range()
    }

    fn is_writable(&self) -> bool {
        (**self).is_writable()
    }

    fn backing(&self) -> Backing {
        (**self).backing()
    }

    fn verify(&self) -> io::Result<()> {
        (**self).verify()
    }
}

/// What memory is made of. Registration errors depend on it: not every kernel pins every kind.
///
/// ```
/// use rpma_mr::{AnonPages, Backing, RegionOwner};
///
/// let pages = AnonPages::new(4096)?;
/// assert_eq!(pages.backing(), Backing::Anonymous);
/// assert_eq!(pages.backing().to_string(), "anonymous memory"); // in messages of errors
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Anonymous pages.
    Anonymous,
    /// A mapped file, not known to be on persistent memory.
    File,
    /// A file on a DAX file system, mapped with `MAP_SYNC`: the pages are the persistent memory itself.
    DaxFile,
    /// A DAX device.
    DaxDevice,
    /// Nothing that this crate knows.
    Other,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Anonymous => "anonymous memory",
            Self::File => "a mapped file",
            Self::DaxFile => "a file on a DAX file system",
            Self::DaxDevice => "a DAX device",
            Self::Other => "memory",
        })
    }
}
