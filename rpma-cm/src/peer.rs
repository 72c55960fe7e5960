//! The peer: a protection domain and what its device can do.

use std::fmt;
use std::sync::Arc;

use rpma_mr::{
    AnonPages, Capabilities, Device, ErrorCode, LocalMr, MapError, NativeOps, PdError, PeerCfg, ProtectionDomain, RegionOwner,
    RegisterError, RegisterFailure, Usage,
};

/// Why a peer could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The device gives no protection domain.
    #[error("the peer's protection domain could not be made")]
    Pd(#[from] PdError),
    /// No page of memory for the library's own use.
    #[error("no memory for the library's own buffer")]
    Buffer(#[source] MapError),
    /// The library's own buffer, 8 bytes that emulated flushes read into, could not be registered.
    #[error("the library's own buffer could not be registered")]
    Register(#[from] RegisterError),
}

impl PeerError {
    /// The code that librpma gives for this: `rpma_peer_new(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Pd(e) => e.code(),
            Self::Buffer(_) => ErrorCode::NoMemory,
            Self::Register(e) => e.code(),
        }
    }
}

/// This process's end on one device: the protection domain that regions and connections belong to. `rpma_peer_new(3)`.
///
/// Cloning is cheap and gives another handle on the same peer. What is made from a peer keeps it alive.
///
/// ```
/// use rpma::prelude::*;
///
/// let device = Device::local(&Provider::Soft.open()?, "127.0.0.1")?; // hardware: Provider::from_env()?, and its address
/// let peer = Peer::new(&device)?;
/// let region = peer.register(AnonPages::new(4096)?, Usage::WRITE_DST)?;
/// drop(peer); // the region keeps it
/// assert_eq!(region.len_bytes(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_peer_delete")]
#[doc(alias = "rpma_peer_new")]
#[derive(Clone)]
pub struct Peer(Arc<Inner>);

struct Inner {
    pd: ProtectionDomain,
    /// Where emulated flushes read to: nobody looks at it, so one serves all connections. A page of its own, for fork's sake.
    flush_target: LocalMr<AnonPages>,
}

impl Peer {
    /// Makes a peer on `device`.
    ///
    /// # Errors
    ///
    /// [`PeerError`] if the device has no more protection domains or regions to give.
    pub fn new(device: &Device) -> Result<Self, PeerError> {
        let pd = ProtectionDomain::new(device)?;
        let page = AnonPages::new(FLUSH_TARGET_BYTES).map_err(PeerError::Buffer)?;
        let flush_target = pd.register(page, Usage::READ_DST).map_err(RegisterError::from)?;
        Ok(Self(Arc::new(Inner { pd, flush_target })))
    }

    /// Registers memory for remote access, or as the local side of it: `rpma_mr_reg(3)`. The library owns it from here on.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let mut pages = AnonPages::new(4096)?;
    /// pages.as_mut_slice()[..5].copy_from_slice(b"hello"); // ordinary memory, until it is registered
    /// let region = peer.register(pages, Usage::READ_SRC | Usage::WRITE_DST)?;
    /// let descriptor = region.descriptor().to_bytes(); // for the other side
    /// assert_eq!(RemoteMr::from_descriptor(&descriptor)?.len_bytes(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`], with the owner in it.
    #[doc(alias = "rpma_mr_reg")]
    pub fn register<M: RegionOwner>(&self, owner: M, usage: Usage) -> Result<LocalMr<M>, RegisterFailure<M>> {
        self.0.pd.register(owner, usage)
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.pd.device()
    }

    /// Its protection domain.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let region = peer.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    /// let of = region.all().pd().ok_or("a slice of a region")?;
    /// assert!(std::sync::Arc::ptr_eq(of, peer.protection_domain().raw())); // and so its connections take the region
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// What its device can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.device().capabilities()
    }

    /// A peer configuration that tells the other side what this device can do. Whether writes go directly to persistent memory here
    /// is the caller's to know and to set: [`PeerCfg::with_direct_write_to_pmem`].
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// // The platform has no caches between the network card and persistent memory: only who runs it knows that.
    /// let cfg = peer.cfg().with_direct_write_to_pmem(true);
    /// let sent = cfg.to_bytes(); // the other side gives it to Conn::apply_remote_peer_cfg
    /// let told = PeerCfg::from_bytes(&sent)?;
    /// assert!(told.direct_write_to_pmem());
    /// assert_eq!(told.native_ops().is_some_and(|ops| ops.flush), peer.capabilities().native_flush);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cfg(&self) -> PeerCfg {
        let Capabilities { native_flush, native_atomic_write, .. } = self.capabilities();
        PeerCfg::new().with_native_ops(Some(NativeOps { flush: native_flush, atomic_write: native_atomic_write }))
    }

    pub(crate) fn flush_target(&self) -> &LocalMr<AnonPages> {
        &self.0.flush_target
    }
}

/// An emulated flush reads this much: `rpma_flush(3)` of the C library does too.
pub(crate) const FLUSH_TARGET_BYTES: usize = 8;

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("device", self.device()).finish_non_exhaustive()
    }
}
