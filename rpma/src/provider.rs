//! Which provider carries RDMA.

use std::env::{self, VarError};
use std::fmt;
#[cfg(feature = "soft")]
use std::io;
#[cfg(feature = "soft")]
use std::net::IpAddr;
use std::str::FromStr;
#[cfg(feature = "soft")]
use std::sync::Once;

#[cfg(feature = "soft")]
use rpma_mr::Device;
use rpma_mr::ErrorCode;
use rpma_mr::sys::{LoadError, ProviderRef, RdmaCore};

/// The variable that [`Provider::from_env`] reads.
pub const PROVIDER_VARIABLE: &str = "RPMA_PROVIDER";

/// What carries RDMA.
///
/// ```
/// use rpma::prelude::*;
///
/// let provider: Provider = "soft".parse()?; // as RPMA_PROVIDER would say
/// assert_eq!(provider, Provider::Soft);
/// let device = Device::local(&provider.open()?, "127.0.0.1")?;
/// assert_eq!(device.name(), "soft0");
/// assert!("verbs".parse::<Provider>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Provider {
    /// rdma-core, opened at run time: RDMA hardware, or the kernel's soft-RoCE.
    #[default]
    RdmaCore,
    /// rdma-core, linked to this program.
    #[cfg(feature = "rdma-sys")]
    RdmaCoreLinked,
    /// RDMA in user space over TCP: for machines without RDMA hardware.
    #[cfg(feature = "soft")]
    Soft,
    /// rdma-core where it has a device for the job, else the software provider: what tools and examples choose.
    #[cfg(feature = "soft")]
    Auto,
}

/// Why there is no provider.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The name is no provider's, or of one that this program was built without.
    #[error("there is no RDMA provider {name:?}; this program has: {}", names())]
    #[expect(missing_docs, reason = "the message explains its field")]
    Unknown { name: String },
    /// So says the environment.
    #[error("{PROVIDER_VARIABLE} names the RDMA provider {name:?}, which there is not; this program has: {}", names())]
    #[expect(missing_docs, reason = "the message explains its field")]
    UnknownInEnv { name: String },
    /// rdma-core cannot be opened.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The software provider cannot be opened: it takes a descriptor, and the process has none left.
    #[cfg(feature = "soft")]
    #[error("the software provider cannot be opened: raise the limit of open files (`ulimit -n`), or close some")]
    #[expect(missing_docs, reason = "the message explains its field")]
    Soft { source: io::Error },
}

impl ProviderError {
    /// The code that librpma gives for this.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } | Self::UnknownInEnv { .. } => ErrorCode::InvalidArgument,
            Self::Load(_) => ErrorCode::Provider,
            #[cfg(feature = "soft")]
            Self::Soft { .. } => ErrorCode::Provider,
        }
    }
}

impl Provider {
    /// All that this program was built with.
    pub const ALL: &[Self] = &[
        Self::RdmaCore,
        #[cfg(feature = "rdma-sys")]
        Self::RdmaCoreLinked,
        #[cfg(feature = "soft")]
        Self::Soft,
        #[cfg(feature = "soft")]
        Self::Auto,
    ];

    /// Its name, as [`FromStr`] takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RdmaCore => "rdma-core",
            #[cfg(feature = "rdma-sys")]
            Self::RdmaCoreLinked => "rdma-core-linked",
            #[cfg(feature = "soft")]
            Self::Soft => "soft",
            #[cfg(feature = "soft")]
            Self::Auto => "auto",
        }
    }

    /// The provider that the environment variable `RPMA_PROVIDER` names; without it, or if it is empty, the default.
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownInEnv`].
    pub fn from_env() -> Result<Self, ProviderError> {
        Self::from_env_or(Self::default())
    }

    /// As [`from_env`](Self::from_env), with another default: tools and examples take `Auto`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// let chosen = Provider::from_env_or(Provider::Auto)?; // a tool's
    /// # if std::env::var_os(rpma::PROVIDER_VARIABLE).is_none() {
    /// assert_eq!(chosen, Provider::Auto); // the variable is not set
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownInEnv`].
    pub fn from_env_or(default: Self) -> Result<Self, ProviderError> {
        let name = match env::var(PROVIDER_VARIABLE) {
            Ok(name) => name,
            Err(VarError::NotPresent) => String::new(),
            Err(VarError::NotUnicode(name)) => name.to_string_lossy().into_owned(),
        };
        if name.is_empty() {
            return Ok(default);
        }
        name.parse().map_err(|_| ProviderError::UnknownInEnv { name })
    }

    /// Opens it. `Auto` is rdma-core if that has any device; where the address is known, [`open_for`](Self::open_for) chooses better.
    ///
    /// # Errors
    ///
    /// [`ProviderError::Load`], which says what to install; `ProviderError::Soft`, if the process has no descriptor left.
    pub fn open(self) -> Result<ProviderRef, ProviderError> {
        match self {
            Self::RdmaCore => Ok(RdmaCore::open()?),
            #[cfg(feature = "rdma-sys")]
            Self::RdmaCoreLinked => Ok(rpma_mr::sys::RdmaCoreLinked::open()),
            #[cfg(feature = "soft")]
            Self::Soft => soft(),
            #[cfg(feature = "soft")]
            Self::Auto => auto(|provider| Device::list(provider).is_ok()),
        }
    }

    /// Opens it for an address, local or a peer's: `Auto` is rdma-core if that has a device which leads there.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// let provider = Provider::Auto.open_for("127.0.0.1")?; // no RDMA hardware leads there
    /// assert_eq!(Device::local(&provider, "127.0.0.1")?.name(), "soft0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ProviderError::Load`], which says what to install; `ProviderError::Soft`, if the process has no descriptor left.
    pub fn open_for(self, host: &str) -> Result<ProviderRef, ProviderError> {
        match self {
            #[cfg(feature = "soft")]
            Self::Auto => {
                let is_loopback = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
                let leads_there = |provider: &ProviderRef| {
                    Device::local(provider, host).is_ok() || Device::remote(provider, host, Device::RESOLVE_TIMEOUT).is_ok()
                };
                auto(|provider| !is_loopback && leads_there(provider))
            }
            other => {
                let _the_same_everywhere = host;
                other.open()
            }
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = ProviderError;

    fn from_str(name: &str) -> Result<Self, ProviderError> {
        Self::ALL
            .iter()
            .copied()
            .find(|provider| provider.name() == name)
            .ok_or_else(|| ProviderError::Unknown { name: name.to_owned() })
    }
}

/// rdma-core if it is there and will do, else the software provider.
#[cfg(feature = "soft")]
fn auto(will_do: impl FnOnce(&ProviderRef) -> bool) -> Result<ProviderRef, ProviderError> {
    match RdmaCore::open() {
        Ok(provider) if will_do(&provider) => Ok(provider),
        _ => {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| log::info!("no RDMA device for this: RDMA in user space over TCP is used (the provider soft)"));
            soft()
        }
    }
}

#[cfg(feature = "soft")]
fn soft() -> Result<ProviderRef, ProviderError> {
    rpma_soft::Soft::open().map_err(|source| ProviderError::Soft { source })
}

fn names() -> String {
    Provider::ALL.iter().map(|provider| provider.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_is_found_by_its_name() {
        for &provider in Provider::ALL {
            assert_eq!(provider.to_string().parse::<Provider>().unwrap(), provider);
        }
    }

    #[test]
    fn unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = "verbs".parse::<Provider>().unwrap_err();
        assert!(error.to_string().starts_with(r#"there is no RDMA provider "verbs"; this program has: rdma-core"#));
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }

    #[cfg(feature = "soft")]
    #[test]
    fn software_provider_without_a_descriptor_says_what_to_do_and_keeps_the_cause() {
        let error = ProviderError::Soft { source: io::Error::from_raw_os_error(24) };
        assert!(error.to_string().contains("ulimit -n"));
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("os error 24"));
        assert_eq!(error.code(), ErrorCode::Provider);
    }
}
