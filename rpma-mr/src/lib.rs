//! Memory for remote persistent memory access.
//!
//! One side registers memory and sends its descriptor; the other decodes the descriptor and
//! reads, writes and flushes that memory without the first side's processor taking part. The
//! formats on the wire are those of the C library librpma, byte for byte.
//!
//! This crate has two parts:
//!
//! - **Descriptors and usage**, always there: [`Usage`] and the [`Access`] rights that follow from
//!   it, the 21 bytes of an [`MrDescriptor`], a peer's memory as [`RemoteMr`] and [`RemoteSlice`],
//!   and the [`PeerCfg`] in which a peer describes its platform. No C, no unsafe code, any
//!   platform.
//! - **Devices and registration**, with the feature `device` (on by default): devices, protection
//!   domains and owned registered regions, over rdma-core.
//!
//! Everything decoded comes from a peer, so all of it is checked, and nothing of it can make this
//! crate panic.
//!
//! # Example
//!
//! A peer's descriptor arrives, and a part of its memory is picked out:
//!
//! ```
//! use rpma_mr::{FlushType, RemoteMr, Usage};
//!
//! # let received = [0x00, 0x10, 0, 0, 0, 0x7F, 0, 0,  0x00, 0x10, 0, 0, 0, 0, 0, 0,  7, 0, 0, 0,  0x28];
//! let remote = RemoteMr::from_descriptor(&received)?;
//! assert_eq!(remote.len_bytes(), 4096);
//! assert!(remote.usage().contains(Usage::WRITE_DST));
//! assert!(remote.flush_types().contains(FlushType::Persistent.required_usage()));
//!
//! let record = remote.slice(512..1024)?;
//! assert_eq!(record.addr(), remote.addr() + 512);
//! assert!(record.is_aligned(8));
//!
//! // What is not within the region is an error here, before anything is posted.
//! assert!(remote.slice(4000..5000).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(feature = "device"), forbid(unsafe_code))]

mod access;
mod code;
mod descriptor;
mod peer_cfg;
mod remote;
mod usage;

#[cfg(feature = "device")]
mod advise;
#[cfg(feature = "device")]
mod copy;
#[cfg(feature = "device")]
mod device;
#[cfg(feature = "device")]
mod device_error;
#[cfg(all(test, feature = "device"))]
mod fake;
#[cfg(feature = "device")]
mod local;
#[cfg(feature = "device")]
mod local_slice;
#[cfg(feature = "device")]
mod owner;
#[cfg(feature = "device")]
mod pd;
#[cfg(feature = "device")]
mod register;
#[cfg(feature = "device")]
mod resolve;

pub use access::{Access, Transport};
pub use code::ErrorCode;
pub use descriptor::{DescriptorError, MrDescriptor};
pub use peer_cfg::{NativeOps, PeerCfg, PeerCfgBytes, PeerCfgError};
pub use remote::{RemoteMr, RemoteSlice, SliceError};
pub use usage::{FlushType, Usage};

#[cfg(feature = "device")]
pub use advise::{Advice, AdviseError, AdviseFlags};
#[cfg(feature = "device")]
pub use copy::AccessError;
#[cfg(feature = "device")]
pub use device::{Capabilities, Device};
#[cfg(feature = "device")]
pub use device_error::DeviceError;
#[cfg(feature = "device")]
pub use local::{DeregisterError, LocalMr};
#[cfg(feature = "device")]
pub use local_slice::LocalSlice;
#[cfg(feature = "device")]
pub use owner::{AnonPages, Backing, DaxDevice, MapError, MappedFile, PersistentMemory, RegionOwner};
#[cfg(feature = "device")]
pub use pd::{PdError, ProtectionDomain};
#[cfg(feature = "device")]
pub use register::{RegisterError, RegisterFailure};

/// The crate below, for the crates above: rdma-core's structures, providers and owned handles.
#[cfg(feature = "device")]
pub use rpma_sys as sys;
