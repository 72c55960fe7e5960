//! A registered region of our own memory.
#![expect(unsafe_code, reason = "registers memory, and owns what must not be freed before it is deregistered")]

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::sync::atomic::Ordering;

use rpma_sys::ProcessMark;
use rpma_sys::bindings::ibv_sge;
use rpma_sys::owned::Mr;

use crate::advise::{self, Advice, AdviseError, AdviseFlags};
use crate::copy::{AccessError, RawRange};
use crate::local_slice::{LocalSlice, within};
use crate::owner::RegionOwner;
use crate::pd::provider_code;
use crate::register::{Granted, RegisterError, RegisterFailure, Request};
use crate::{ErrorCode, MrDescriptor, ProtectionDomain, SliceError, Usage};

/// A registered region of our own memory (`rpma_mr_local`), which owns the memory for as long as it is registered.
///
/// A peer or the device may write the memory at any time, so it is never borrowed in safe code, only copied
/// ([`read_at`](Self::read_at), [`write_at`](Self::write_at)); [`deregister`](Self::deregister) gives the owner back. Dropping the
/// region deregisters it first and drops the owner then. If deregistering fails, both are leaked and an error is logged: the device
/// may still write the memory. In a forked child, dropping does nothing and every access is an error.
///
/// ```
/// use rpma_mr::{AnonPages, Device, ProtectionDomain, Usage};
///
/// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
/// # let pd = ProtectionDomain::new(&device)?;
/// let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_DST | Usage::READ_SRC)?;
/// region.write_at(100, b"for whoever reads it")?;
/// let mut copy = [0; 8];
/// region.read_at(100, &mut copy)?;
/// assert_eq!(&copy, b"for whoe");
/// let pages = region.deregister()?; // ordinary memory again
/// assert!(pages.as_slice()[100..].starts_with(b"for whoever"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What is registered has no slices:
///
/// ```compile_fail,E0599
/// fn peek(region: &rpma_mr::LocalMr<rpma_mr::AnonPages>) -> &[u8] {
///     region.as_mut_slice()
/// }
/// ```
///
/// Slices that were taken before keep it from being registered:
///
/// ```compile_fail,E0505
/// # use rpma_mr::{AnonPages, ProtectionDomain, Usage};
/// fn keep(pd: &ProtectionDomain, pages: AnonPages) {
///     let bytes = pages.as_slice();
///     let region = pd.register(pages, Usage::WRITE_DST);
///     assert_eq!(bytes[0], 0);
/// }
/// ```
///
/// Not even `unsafe` lends the owner; borrowing the bytes is `unsafe` ([`as_slice`](Self::as_slice)):
///
/// ```compile_fail,E0133
/// fn peek(region: &rpma_mr::LocalMr<rpma_mr::AnonPages>) -> &[u8] {
///     region.as_slice()
/// }
/// ```
///
/// Slices for operations do not outlive the region:
///
/// ```compile_fail,E0505
/// # use rpma_mr::{AnonPages, LocalMr};
/// fn late(region: LocalMr<AnonPages>) {
///     let slice = region.all();
///     drop(region);
///     assert_eq!(slice.len_bytes(), 0);
/// }
/// ```
#[doc(alias = "rpma_mr_local")]
pub struct LocalMr<M: RegionOwner> {
    /// Taken out by whoever consumes the region, and by nobody else.
    mr: ManuallyDrop<Mr>,
    /// Dropped or handed back after the region is deregistered, else leaked; until then never lent.
    owner: ManuallyDrop<M>,
    memory: RawRange,
    descriptor: MrDescriptor,
    requested: Usage,
    is_on_demand: bool,
    mark: ProcessMark,
}

// SAFETY: the owner is `Send` (a supertrait of `RegionOwner`), and so is the region of verbs. `RawRange` is an address of the owner's
// memory, which belongs to the process and not to a thread, and moves with its owner.
unsafe impl<M: RegionOwner> Send for LocalMr<M> {}
// SAFETY: `&LocalMr` gives out no `&M`, whatever it is: every method uses the region of verbs, which is `Sync`, values that do not
// change, and the memory itself by copies that may run on several threads at once (see `copy.rs`). `as_slice` is `unsafe`, and its
// caller answers for other threads. The owner is touched only by `deregister` and `drop`, which have the region to themselves.
unsafe impl<M: RegionOwner> Sync for LocalMr<M> {}

impl ProtectionDomain {
    /// Registers an owner's memory for `usage`. (`rpma_mr_reg`)
    ///
    /// What is granted can be less than what is asked for in one case: a device with native flush that does not take the memory for
    /// persistent. The region is then made without that right, a warning is logged, and its [`usage`](LocalMr::usage) and descriptor
    /// say `FLUSH_TYPE_VISIBILITY` in place of `FLUSH_TYPE_PERSISTENT`. Where the pages cannot be pinned and the device has on-demand
    /// paging, the region is [on demand](LocalMr::is_on_demand).
    ///
    /// ```
    /// use rpma_mr::{AnonPages, Device, ProtectionDomain, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT)?;
    /// assert_eq!(region.requested_usage(), Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT);
    /// // Anonymous memory is not persistent, so this is what was granted.
    /// assert_eq!(region.usage(), Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: a [`RegisterError`], and the owner back.
    #[doc(alias = "rpma_mr_reg")]
    pub fn register<M: RegionOwner>(&self, owner: M, usage: Usage) -> Result<LocalMr<M>, RegisterFailure<M>> {
        match self.try_register(&owner, usage) {
            Ok((mr, memory, granted)) => Ok(LocalMr {
                mr: ManuallyDrop::new(mr),
                owner: ManuallyDrop::new(owner),
                memory,
                descriptor: granted.region,
                requested: usage,
                is_on_demand: granted.is_on_demand,
                mark: ProcessMark::current(),
            }),
            Err(error) => Err(RegisterFailure { owner, error }),
        }
    }

    fn try_register(
        &self,
        owner: &impl RegionOwner,
        usage: Usage,
    ) -> Result<(Mr, RawRange, Granted<MrDescriptor>), RegisterError> {
        let device = self.device();
        let (base, len_bytes) = owner.range();
        let request = Request {
            addr: base.addr().get(),
            len_bytes,
            writable: owner.is_writable(),
            backing: owner.backing(),
            usage,
            transport: device.transport(),
            capabilities: device.capabilities(),
        };
        request.check()?;
        owner.verify().map_err(|source| RegisterError::Owner { source })?;
        let granted = request.run(|access| {
            // SAFETY: the owner answers for the range (contract of `RegionOwner`): mapped until it is dropped, no reference into it.
            // It is dropped or handed back only after the region is deregistered, and leaked if that fails (`LocalMr`, and below).
            // The rights to write are asked for writable memory only (`Request::check`).
            unsafe { Mr::register(self.raw(), base, len_bytes, access.bits()) }
        })?;
        // SAFETY: readable, and writable if told so, until the owner is dropped, which `LocalMr` delays to its own end; no reference
        // into it exists (contract of `RegionOwner`).
        let memory = unsafe { RawRange::new(base, len_bytes, request.writable) };
        let Granted { region: mr, usage, is_on_demand } = granted;
        if is_on_demand && device.is_soft_roce() {
            log::warn!(
                "soft-RoCE with on-demand paging places data right only where an operation begins a page and fits one packet: see \
                 LocalMr::is_on_demand"
            );
        }
        let descriptor = MrDescriptor::new(base.addr().get() as u64, len_bytes as u64, mr.rkey(), usage)
            .expect("the usage is not empty and the range does not wrap: `Request::check`");
        Ok((mr, memory, Granted { region: descriptor, usage, is_on_demand }))
    }
}

impl<M: RegionOwner> LocalMr<M> {
    /// Deregisters, and hands the owner back. (`rpma_mr_dereg`) Connections may live on; operations that still use the region fail.
    ///
    /// ```
    /// use rpma_mr::{AnonPages, Device, ProtectionDomain, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_DST)?;
    /// region.write_at(0, b"from a peer, say")?;
    /// let mut pages = region.deregister()?;
    /// assert!(pages.as_slice().starts_with(b"from a peer"));
    /// pages.as_mut_slice().fill(0); // nobody else writes it now
    /// let again = pd.register(pages, Usage::READ_SRC)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeregisterError`]: the memory is then leaked with its owner, because the device may still use it.
    #[doc(alias = "rpma_mr_dereg")]
    pub fn deregister(self) -> Result<M, DeregisterError> {
        // From here on `Drop` does not run: what is not handed back is leaked.
        let mut this = ManuallyDrop::new(self);
        if !this.mark.is_current() {
            return Err(DeregisterError::OtherProcess);
        }
        let len_bytes = this.len_bytes();
        // SAFETY: taken once: `this` is never dropped, and is not asked for the region of verbs again.
        let mr = unsafe { ManuallyDrop::take(&mut this.mr) };
        mr.deregister().map_err(|source| DeregisterError::Provider { len_bytes, source })?;
        // SAFETY: taken once, as above. The range is deregistered, so the owner may do with it what it likes again.
        Ok(unsafe { ManuallyDrop::take(&mut this.owner) })
    }

    /// The length in bytes.
    #[doc(alias = "rpma_mr_get_size")]
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// The address of the first byte (`rpma_mr_get_ptr`). Reading or writing through it is as `unsafe` as it looks: the device and
    /// peers write the memory at any time.
    ///
    /// ```
    /// use rpma_mr::{AnonPages, Device, ProtectionDomain, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_DST)?;
    /// assert_eq!(region.as_ptr().addr() as u64, region.descriptor().addr()); // what a peer is told
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_mr_get_ptr")]
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.memory.base().as_ptr()
    }

    /// What the region can be used for, which its descriptor tells peers: what was granted.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.descriptor.usage()
    }

    /// What the region was asked for. It differs from [`usage`](Self::usage) where the device does not take the memory for
    /// persistent.
    #[must_use]
    pub const fn requested_usage(&self) -> Usage {
        self.requested
    }

    /// Whether pages are brought in when they are touched, and not pinned.
    ///
    /// Soft-RoCE of Linux 7.3, and by its source of every version with on-demand paging so far, places what arrives for such a region at
    /// the start of the page, whatever the offset in it (`__rxe_odp_mr_copy`; measured). Only operations that begin on a page boundary
    /// and fit one packet (1024 bytes, on ordinary Ethernet) come out right there.
    #[must_use]
    pub const fn is_on_demand(&self) -> bool {
        self.is_on_demand
    }

    /// Whether the memory may be written by us.
    ///
    /// ```
    /// use rpma_mr::{AccessError, Device, MappedFile, ProtectionDomain, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// # let file = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(file.path(), b"for reading")?;
    /// let region = pd.register(MappedFile::open_read_only(file.path())?, Usage::READ_SRC)?;
    /// assert!(!region.is_writable());
    /// assert!(matches!(region.write_at(0, b"nothing"), Err(AccessError::ReadOnly)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.memory.is_writable()
    }

    /// What a peer needs to reach the region. (`rpma_mr_get_descriptor`)
    ///
    /// ```
    /// use rpma_mr::{AnonPages, Device, ProtectionDomain, RemoteMr, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_DST)?;
    /// let sent = region.descriptor().to_bytes();
    /// let known = RemoteMr::from_descriptor(&sent)?; // at the peer
    /// assert_eq!((known.len_bytes(), known.usage()), (4096, Usage::WRITE_DST));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_mr_get_descriptor")]
    #[must_use]
    pub const fn descriptor(&self) -> MrDescriptor {
        self.descriptor
    }

    /// Copies `dst.len()` bytes out, from `offset_bytes` on. A peer or the device may write meanwhile, so the copy can be torn:
    /// validate the copy, and do not read the region twice.
    ///
    /// A mapped file that was truncated kills the process: see [`MappedFile`](crate::MappedFile).
    ///
    /// ```
    /// use rpma_mr::{AccessError, AnonPages, Device, ProtectionDomain, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// # let region = pd.register(AnonPages::new(4096)?, Usage::RECV)?;
    /// # region.write_at(0, &5_u32.to_le_bytes())?;
    /// # region.write_at(4, b"hello")?;
    /// let mut length = [0; 4];
    /// region.read_at(0, &mut length)?; // once: the peer may change it
    /// let mut message = vec![0; u32::from_le_bytes(length) as usize];
    /// assert!(message.len() <= 512, "the peer is wrong");
    /// region.read_at(4, &mut message)?;
    /// assert_eq!(message, b"hello");
    /// assert!(matches!(region.read_at(4095, &mut length), Err(AccessError::OutOfRange { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`] if the range does not fit the region, [`AccessError::OtherProcess`] in a forked child; `dst` is
    /// then untouched.
    pub fn read_at(&self, offset_bytes: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        self.memory()?.read_at(offset_bytes, dst)
    }

    /// Copies `src` in, from `offset_bytes` on. A peer or the device may read and write meanwhile, and see any part of it.
    ///
    /// A mapped file that was truncated kills the process: see [`MappedFile`](crate::MappedFile).
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`] if the range does not fit the region, [`AccessError::ReadOnly`] if its memory cannot be written,
    /// [`AccessError::OtherProcess`] in a forked child; nothing is then written.
    pub fn write_at(&self, offset_bytes: usize, src: &[u8]) -> Result<(), AccessError> {
        self.memory()?.write_at(offset_bytes, src)
    }

    /// Reads 8 bytes at once, in the byte order of this machine. With [`Ordering::Acquire`], what the writer of the value wrote
    /// before it is visible after it, if that was another thread, or a peer whose writes arrive in order.
    ///
    /// ```
    /// use rpma_mr::{AnonPages, Device, ProtectionDomain, Usage};
    /// use std::sync::atomic::Ordering;
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// # let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_DST)?;
    /// # region.write_at(8, b"record")?;
    /// # region.store_u64(0, 6, Ordering::Release)?;
    /// // A peer writes a record, and then, atomically, how many bytes there are.
    /// let len = region.load_u64(0, Ordering::Acquire)? as usize;
    /// let mut record = vec![0; len.min(4088)];
    /// region.read_at(8, &mut record)?;
    /// assert_eq!(record, b"record");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at), and [`AccessError::Misaligned`] unless the *address* is a multiple of 8.
    ///
    /// # Panics
    ///
    /// If `order` is no order of a load ([`AtomicU64::load`](std::sync::atomic::AtomicU64::load)).
    pub fn load_u64(&self, offset_bytes: usize, order: Ordering) -> Result<u64, AccessError> {
        self.memory()?.load_u64(offset_bytes, order)
    }

    /// Writes 8 bytes at once, in the byte order of this machine.
    ///
    /// ```
    /// use rpma_mr::{AccessError, AnonPages, Device, ProtectionDomain, Usage};
    /// use std::sync::atomic::Ordering;
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(4096)?, Usage::READ_SRC)?;
    /// region.write_at(8, b"record")?;
    /// region.store_u64(0, 6, Ordering::Release)?; // a peer that reads it finds the record
    /// assert!(matches!(region.store_u64(4, 6, Ordering::Release), Err(AccessError::Misaligned { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at), and [`AccessError::Misaligned`] unless the *address* is a multiple of 8.
    ///
    /// # Panics
    ///
    /// If `order` is no order of a store ([`AtomicU64::store`](std::sync::atomic::AtomicU64::store)).
    pub fn store_u64(&self, offset_bytes: usize, value: u64, order: Ordering) -> Result<(), AccessError> {
        self.memory()?.store_u64(offset_bytes, value, order)
    }

    /// The bytes of the region, borrowed.
    ///
    /// ```
    /// use rpma_mr::{AnonPages, Device, ProtectionDomain, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    /// region.write_at(0, b"ours alone")?;
    /// // SAFETY: this thread has the region to itself, no peer was given its key, and no receive or read of ours writes it.
    /// let bytes = unsafe { region.as_slice() };
    /// assert!(bytes.starts_with(b"ours alone"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// Nothing writes the region while the slice is used: no peer, no operation of ours that the device may still be working on, no
    /// thread of ours, no process that has the memory mapped. A mapped file is not truncated meanwhile. This process registered the
    /// region.
    #[must_use]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: readable for its length, which is at most isize::MAX because it is one mapped object, and initialised by the kernel;
        // that nobody writes it meanwhile is this function's own contract.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len_bytes()) }
    }

    /// Advises the device what is about to happen to a part of the region. (`rpma_mr_advise`, `ibv_advise_mr(3)`)
    ///
    /// A range of more than 32 bits is passed on in pieces. An empty range is no advice and succeeds.
    ///
    /// ```
    /// use rpma_mr::{Advice, AdviseFlags, AnonPages, Device, ProtectionDomain, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(1 << 20)?, Usage::WRITE_DST)?;
    /// if region.is_on_demand() {
    ///     region.advise(..1 << 16, Advice::PrefetchWrite, AdviseFlags::FLUSH)?;
    /// }
    /// region.advise(100..100, Advice::Prefetch, AdviseFlags::empty())?; // of nothing: no advice
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AdviseError`]. The pieces before one that failed are taken.
    #[doc(alias = "rpma_mr_advise")]
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice, flags: AdviseFlags) -> Result<(), AdviseError> {
        let (start, end) = within(range, self.len_bytes())?;
        let addr = self.descriptor.addr() + start as u64;
        let lkey = self.mr.lkey();
        let mut pieces = advise::pieces(addr, (end - start) as u64).map(|(addr, length)| ibv_sge { addr, length, lkey });
        loop {
            let mut list: Vec<_> = pieces.by_ref().take(advise::PIECES_PER_CALL).collect();
            if list.is_empty() {
                return Ok(());
            }
            self.mr.advise(advice.as_raw(), flags.bits(), &mut list).map_err(|source| AdviseError::of(advice, source))?;
        }
    }

    /// The whole region, for operations.
    #[must_use]
    pub fn all(&self) -> LocalSlice<'_> {
        LocalSlice::whole(self.descriptor.addr(), self.len_bytes(), self.mr.lkey(), self.usage(), self.mr.pd())
    }

    /// The part of the region that `range` covers, in bytes from its start, for operations. An empty range is fine, at the end too.
    ///
    /// ```
    /// use rpma_mr::{AnonPages, Device, ProtectionDomain, SliceError, Usage};
    ///
    /// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let region = pd.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    /// let record = region.slice(512..1024)?; // for Conn::write, say
    /// assert_eq!((record.len_bytes(), record.usage()), (512, Usage::WRITE_SRC));
    /// assert!(region.slice(4096..)?.is_empty());
    /// assert!(matches!(region.slice(..4097), Err(SliceError::OutOfBounds { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SliceError`] if `range` is inverted, does not fit in 64 bits, or ends past the region.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice<'_>, SliceError> {
        self.all().slice(range)
    }

    /// The `len_bytes` bytes that start `offset_bytes` into the region, for operations. The sum need not be computed, or checked, by the
    /// caller.
    ///
    /// # Errors
    ///
    /// [`SliceError`] if the sum does not fit in 64 bits or ends past the region.
    pub fn slice_at(&self, offset_bytes: usize, len_bytes: usize) -> Result<LocalSlice<'_>, SliceError> {
        self.all().slice_at(offset_bytes, len_bytes)
    }

    /// The memory, in the process that registered it: a child may not have it mapped (`ibv_fork_init(3)`).
    fn memory(&self) -> Result<&RawRange, AccessError> {
        if self.mark.is_current() { Ok(&self.memory) } else { Err(AccessError::OtherProcess) }
    }
}

impl<M: RegionOwner> Drop for LocalMr<M> {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        // SAFETY: taken once: the region is being dropped.
        let mr = unsafe { ManuallyDrop::take(&mut self.mr) };
        // A failure is logged there. The owner is then never dropped: the device may still use its memory.
        if mr.deregister().is_ok() {
            // SAFETY: dropped once: the region is being dropped, and the range is deregistered.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}

// By hand: an owner need not be `Debug`, and is never lent.
impl<M: RegionOwner> fmt::Debug for LocalMr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalMr")
            .field("descriptor", &self.descriptor)
            .field("requested", &self.requested)
            .field("is_on_demand", &self.is_on_demand)
            .finish_non_exhaustive()
    }
}

/// Why a region could not be deregistered. Its memory is leaked: the device may still use it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum DeregisterError {
    /// The region was registered by the parent process, and stays registered there.
    #[error("this region was registered by the parent process, which alone can deregister it")]
    OtherProcess,
    /// The provider refused.
    #[error("the provider refused to deregister {len_bytes} bytes, which are leaked with their owner")]
    Provider { len_bytes: usize, source: io::Error },
}

impl DeregisterError {
    /// The C library's code for this error.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::OtherProcess => ErrorCode::Provider,
            Self::Provider { source, .. } => provider_code(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::{AnonPages, Backing, Device, MappedFile};
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    const NATIVE_FLUSH: u64 = 3 << 38;

    fn domain(fake: &Fake) -> ProtectionDomain {
        ProtectionDomain::new(&Device::by_name(&fake.provider(), "fake0").unwrap()).unwrap()
    }

    fn fake() -> Fake {
        Fake::new(&[("fake0", false)])
    }

    fn pages() -> AnonPages {
        AnonPages::new(8192).unwrap()
    }

    /// An owner that tells when it is dropped.
    struct Watched {
        pages: AnonPages,
        dropped: Arc<AtomicBool>,
    }

    // SAFETY: the memory of the pages, which are lent to nobody.
    unsafe impl RegionOwner for Watched {
        fn range(&self) -> (NonNull<u8>, usize) {
            self.pages.range()
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.dropped.store(true, Ordering::SeqCst);
        }
    }

    fn watched() -> (Watched, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Watched { pages: pages(), dropped: Arc::clone(&dropped) }, dropped)
    }

    #[test]
    fn region_is_send_and_sync_though_its_owner_is_only_send() {
        fn check<T: Send + Sync>() {}
        struct OnlySend(std::cell::Cell<u8>);
        // SAFETY: never registered.
        unsafe impl RegionOwner for OnlySend {
            fn range(&self) -> (NonNull<u8>, usize) {
                (NonNull::dangling(), usize::from(self.0.get()))
            }
        }
        check::<LocalMr<OnlySend>>();
    }

    #[test]
    fn descriptor_tells_address_length_key_and_usage() {
        let fake = fake();
        let pages = pages();
        let (base, len) = pages.range();
        let region = domain(&fake).register(pages, Usage::WRITE_DST | Usage::READ_SRC).unwrap();
        let descriptor = region.descriptor();
        assert_eq!((descriptor.addr(), descriptor.len_bytes()), (base.addr().get() as u64, len as u64));
        assert_eq!((descriptor.rkey(), descriptor.usage()), (0x22, Usage::WRITE_DST | Usage::READ_SRC));
        assert_eq!((region.len_bytes(), region.as_ptr()), (len, base.as_ptr()));
        assert_eq!(region.usage(), region.requested_usage());
        assert!(!region.is_on_demand() && region.is_writable());
    }

    #[test]
    fn descriptor_tells_the_truth_about_memory_that_is_not_persistent() {
        let fake = fake();
        fake.edit(|state| {
            state.device_cap_flags_ex = NATIVE_FLUSH;
            state.reg_errnos.push_back(22);
        });
        let asked = Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT;
        let region = domain(&fake).register(pages(), asked).unwrap();
        assert_eq!(region.usage(), Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY);
        assert_eq!(region.descriptor().usage(), region.usage());
        assert_eq!(region.all().usage(), region.usage());
        assert_eq!(region.requested_usage(), asked);
        // Remote read, write, local write; flush to persistence the first time, to visibility the second.
        assert_eq!(fake.edit(|state| state.reg_access.clone()), [0x207, 0x107]);
    }

    #[test]
    fn region_is_on_demand_where_its_pages_cannot_be_pinned() {
        let fake = fake();
        fake.edit(|state| {
            state.on_demand_paging = true;
            state.reg_errnos.push_back(95);
        });
        let region = domain(&fake).register(pages(), Usage::READ_SRC).unwrap();
        assert!(region.is_on_demand());
        assert_eq!(fake.edit(|state| state.reg_access.clone()), [0x04, 0x44]);
    }

    #[test]
    fn owner_comes_back_from_a_failure_and_from_deregistering() {
        let fake = fake();
        let domain = domain(&fake);
        fake.edit(|state| state.reg_errnos.push_back(12));
        let mut pages = pages();
        pages.as_mut_slice()[0] = 42;
        let failure = domain.register(pages, Usage::SEND).unwrap_err();
        assert!(matches!(failure.error, RegisterError::NoMemory { .. }));
        let region = domain.register(failure.owner, Usage::SEND).unwrap();
        region.write_at(1, &[43]).unwrap();
        let pages = region.deregister().unwrap();
        assert_eq!(pages.as_slice()[..2], [42, 43]);
        drop(domain);
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn dropping_deregisters_and_then_drops_the_owner() {
        let fake = fake();
        let domain = domain(&fake);
        let (owner, dropped) = watched();
        let region = domain.register(owner, Usage::RECV).unwrap();
        // The list, the domain, the region: which holds the other two.
        drop(domain);
        assert_eq!(fake.live(), 3);
        drop(region);
        assert_eq!(fake.live(), 0);
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[test]
    fn regions_of_different_memory_can_have_one_type() {
        let fake = fake();
        let dir = tempfile::tempdir().unwrap();
        let owners: [Box<dyn RegionOwner>; 2] =
            [Box::new(pages()), Box::new(MappedFile::create(dir.path().join("f"), 100).unwrap())];
        let regions = owners.map(|owner| domain(&fake).register(owner, Usage::RECV).unwrap());
        assert_eq!(regions.each_ref().map(LocalMr::len_bytes), [8192, 100]);
    }

    #[test]
    fn owner_of_a_region_that_cannot_be_deregistered_is_never_dropped() {
        let fake = fake();
        let domain = domain(&fake);
        fake.edit(|state| state.dereg = Some(16));
        let (owner, dropped) = watched();
        drop(domain.register(owner, Usage::RECV).unwrap());
        assert!(!dropped.load(Ordering::SeqCst));

        let (owner, dropped) = watched();
        let error = domain.register(owner, Usage::RECV).unwrap().deregister().map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("8192 bytes"), "{error}");
        assert_eq!(error.code(), ErrorCode::Provider);
        assert!(!dropped.load(Ordering::SeqCst));
        // The regions keep what stands above them: the list, the domain, the two regions.
        drop(domain);
        assert_eq!(fake.live(), 4);
    }

    #[test]
    fn registered_memory_is_at_its_address_and_is_copied_and_loaded_within_its_bounds() {
        let fake = fake();
        let memory = pages();
        let at = memory.as_slice().as_ptr();
        let region = domain(&fake).register(memory, Usage::WRITE_DST).unwrap();
        assert_eq!(region.as_ptr().cast_const(), at);
        region.write_at(100, b"persistent").unwrap();
        let mut copy = [0; 10];
        region.read_at(100, &mut copy).unwrap();
        assert_eq!(&copy, b"persistent");
        region.store_u64(8184, 7, Ordering::Release).unwrap();
        assert_eq!(region.load_u64(8184, Ordering::Acquire), Ok(7));
        assert!(matches!(region.write_at(8183, &copy), Err(AccessError::OutOfRange { .. })));
        assert!(matches!(region.load_u64(8188, Ordering::Relaxed), Err(AccessError::OutOfRange { .. })));
        assert!(matches!(region.load_u64(12, Ordering::Relaxed), Err(AccessError::Misaligned { .. })));
        // SAFETY: nothing writes the memory: the device does nothing, and no other thread has the region.
        assert_eq!(&unsafe { region.as_slice() }[100..110], b"persistent");
    }

    #[test]
    fn slices_lie_within_the_region_and_carry_its_key() {
        let fake = fake();
        let domain = domain(&fake);
        let region = domain.register(pages(), Usage::WRITE_SRC).unwrap();
        let start = region.descriptor().addr();
        let slice = region.slice(100..).unwrap().slice(..=9).unwrap();
        assert_eq!((slice.addr(), slice.len_bytes(), slice.lkey()), (start + 100, 10, 0x11));
        assert_eq!(slice.usage(), Usage::WRITE_SRC);
        assert!(Arc::ptr_eq(slice.pd().unwrap(), domain.raw()));
        assert!(region.slice(8192..).unwrap().is_empty());
        assert_eq!(region.slice(1..8193).unwrap_err().code(), ErrorCode::InvalidArgument);
        assert!(slice.slice(..11).is_err());
        let at = region.slice_at(96, 14).unwrap().slice_at(4, 10).unwrap();
        assert_eq!((at.addr(), at.len_bytes(), at.lkey()), (slice.addr(), 10, 0x11));
        assert_eq!(region.slice_at(8192, 1).unwrap_err().code(), ErrorCode::InvalidArgument);
    }

    #[test]
    fn file_opened_for_reading_registers_for_what_only_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7; 4096]).unwrap();
        let fake = fake();
        let domain = domain(&fake);
        let failure = domain.register(MappedFile::open_read_only(&path).unwrap(), Usage::WRITE_DST).unwrap_err();
        assert!(matches!(failure.error, RegisterError::ReadOnly { refused: Usage::WRITE_DST }));
        assert!(fake.edit(|state| state.reg_access.is_empty()));
        let region = domain.register(failure.owner, Usage::READ_SRC | Usage::SEND).unwrap();
        // Remote read alone: nothing that writes.
        assert_eq!(fake.edit(|state| state.reg_access.clone()), [0x04]);
        assert_eq!(region.write_at(0, &[1]), Err(AccessError::ReadOnly));
        assert_eq!(region.store_u64(0, 1, Ordering::Relaxed), Err(AccessError::ReadOnly));
        assert_eq!(region.load_u64(0, Ordering::Relaxed), Ok(0x0707_0707_0707_0707));
    }

    #[test]
    fn file_truncated_after_mapping_is_refused_before_the_device_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let fake = fake();
        let file = MappedFile::create(&path, 8192).unwrap();
        assert_eq!(file.backing() == Backing::DaxFile, file.is_map_sync());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        let error = domain(&fake).register(file, Usage::READ_SRC).unwrap_err().error;
        assert!(matches!(&error, RegisterError::Owner { source } if source.to_string().contains("truncated")), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(fake.edit(|state| state.reg_access.is_empty()));
    }

    #[test]
    fn region_in_a_forked_child_refuses_every_access_and_is_left_alone() {
        let fake = fake();
        let (owner, dropped) = watched();
        let region = domain(&fake).register(owner, Usage::WRITE_DST).unwrap();
        // SAFETY: the child compares and loads, and then calls `_exit(2)`: nothing that needs a lock of another thread.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let refused = region.read_at(0, &mut [0]) == Err(AccessError::OtherProcess)
                && region.write_at(0, &[1]) == Err(AccessError::OtherProcess)
                && region.load_u64(0, Ordering::Relaxed) == Err(AccessError::OtherProcess)
                && region.store_u64(0, 1, Ordering::Relaxed) == Err(AccessError::OtherProcess);
            drop(region);
            let status = i32::from(!refused || dropped.load(Ordering::Relaxed));
            // SAFETY: `_exit` has no conditions.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place for the result.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(waited, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
        region.write_at(0, &[1]).unwrap();
        assert_eq!(fake.live(), 3);
    }

    #[test]
    fn advice_reaches_the_device_as_absolute_ranges() {
        let fake = fake();
        let region = domain(&fake).register(pages(), Usage::READ_SRC).unwrap();
        region.advise(4096.., Advice::PrefetchWrite, AdviseFlags::FLUSH).unwrap();
        let start = region.descriptor().addr();
        assert_eq!(fake.edit(|state| state.advised.clone()), [(1, 1, vec![(start + 4096, 4096)])]);
        region.advise(10..10, Advice::Prefetch, AdviseFlags::empty()).unwrap();
        assert!(matches!(region.advise(..8193, Advice::Prefetch, AdviseFlags::empty()), Err(AdviseError::BadRange { .. })));
        assert_eq!(fake.edit(|state| state.advised.len()), 1);
        fake.edit(|state| state.advise = Some(95));
        let error = region.advise(.., Advice::Prefetch, AdviseFlags::empty()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotSupported);
    }

    #[test]
    fn advice_about_more_than_one_call_takes_is_given_in_several() {
        /// An owner that claims 10 TiB, which nobody touches.
        struct Vast;
        // SAFETY: the device of this test touches no memory, and neither does the test.
        unsafe impl RegionOwner for Vast {
            fn range(&self) -> (NonNull<u8>, usize) {
                (NonNull::dangling(), 10 << 40)
            }
        }
        let fake = fake();
        let region = domain(&fake).register(Vast, Usage::READ_SRC).unwrap();
        region.advise(.., Advice::Prefetch, AdviseFlags::empty()).unwrap();
        let calls = fake.edit(|state| state.advised.clone());
        assert!(calls.len() > 1);
        let mut next = region.descriptor().addr();
        for (addr, len) in calls.into_iter().flat_map(|(_, _, list)| list) {
            assert_eq!(addr, next);
            next += u64::from(len);
        }
        assert_eq!(next, region.descriptor().addr() + (10 << 40));
    }
}
