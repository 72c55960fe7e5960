//! Protection domains.

use std::io;
use std::sync::Arc;

use rpma_sys::owned::Pd;

use crate::{Device, ErrorCode};

/// A protection domain: memory and connections work together only within one. Cheap to clone. (`rpma_peer`, `ibv_alloc_pd(3)`)
///
/// ```
/// use rpma_mr::{AnonPages, Device, ProtectionDomain, Usage};
///
/// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
/// let pd = ProtectionDomain::new(&device)?;
/// let region = pd.register(AnonPages::new(4096)?, Usage::READ_SRC)?;
/// drop(pd); // the region keeps it
/// assert_eq!(region.len_bytes(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_peer")]
#[derive(Debug, Clone)]
pub struct ProtectionDomain {
    pd: Arc<Pd>,
    device: Device,
}

/// Why there is no protection domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum PdError {
    /// Out of memory, or the device has no more protection domains to give.
    #[error("no memory for a protection domain on {device}")]
    NoMemory { device: String, source: io::Error },
    /// The provider refused.
    #[error("the provider refused a protection domain on {device}")]
    Provider { device: String, source: io::Error },
}

impl PdError {
    /// The C library's code for this error.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoMemory { .. } => ErrorCode::NoMemory,
            Self::Provider { source, .. } => provider_code(source),
        }
    }
}

/// The code of a failure of the provider: one without an errno has no known cause.
pub(crate) fn provider_code(source: &io::Error) -> ErrorCode {
    if source.raw_os_error().is_some() { ErrorCode::Provider } else { ErrorCode::Unknown }
}

impl ProtectionDomain {
    /// Allocates a protection domain on `device`. (`rpma_peer_new`)
    ///
    /// # Errors
    ///
    /// [`PdError::NoMemory`] for ENOMEM, else [`PdError::Provider`].
    #[doc(alias = "rpma_peer_new")]
    pub fn new(device: &Device) -> Result<Self, PdError> {
        match Pd::alloc(device.context()) {
            Ok(pd) => Ok(Self { pd, device: device.clone() }),
            Err(source) => {
                let device = device.name().to_owned();
                Err(if source.kind() == io::ErrorKind::OutOfMemory {
                    PdError::NoMemory { device, source }
                } else {
                    PdError::Provider { device, source }
                })
            }
        }
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The protection domain of verbs.
    #[must_use]
    pub fn raw(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Whether both are the same protection domain.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pd, &other.pd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn refusals_map_to_the_c_librarys_codes() {
        let fake = Fake::new(&[("fake0", false)]);
        let device = Device::by_name(&fake.provider(), "fake0").unwrap();
        for (errno, code) in [(12, ErrorCode::NoMemory), (22, ErrorCode::Provider), (0, ErrorCode::Unknown)] {
            fake.edit(|state| state.alloc_pd = Some(errno));
            let error = ProtectionDomain::new(&device).unwrap_err();
            assert_eq!(error.code(), code, "{errno}");
            assert!(error.to_string().contains("fake0"));
        }
    }

    #[test]
    fn clones_are_the_same_domain_and_keep_the_device() {
        let fake = Fake::new(&[("fake0", false)]);
        let pd = ProtectionDomain::new(&Device::by_name(&fake.provider(), "fake0").unwrap()).unwrap();
        let clone = pd.clone();
        let other = ProtectionDomain::new(pd.device()).unwrap();
        assert!(pd.is_same_as(&clone) && !pd.is_same_as(&other));
        drop((pd, other));
        // The list that keeps the device, and the domain.
        assert_eq!(fake.live(), 2);
        drop(clone);
        assert_eq!(fake.live(), 0);
    }
}
