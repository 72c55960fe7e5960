//! Which provider carries RDMA.

use std::env::{self, VarError};
use std::fmt;
use std::str::FromStr;

use rpma_mr::ErrorCode;
use rpma_mr::sys::{LoadError, ProviderRef, RdmaCore};

/// The variable that [`Provider::from_env`] reads.
pub const PROVIDER_VARIABLE: &str = "RPMA_PROVIDER";

/// What carries RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Provider {
    /// rdma-core, opened at run time: RDMA hardware, or the kernel's soft-RoCE.
    #[default]
    RdmaCore,
    /// rdma-core, linked to this program.
    #[cfg(feature = "rdma-sys")]
    RdmaCoreLinked,
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
}

impl ProviderError {
    /// The code that librpma gives for this.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } | Self::UnknownInEnv { .. } => ErrorCode::InvalidArgument,
            Self::Load(_) => ErrorCode::Provider,
        }
    }
}

impl Provider {
    /// All that this program was built with.
    pub const ALL: &[Self] = &[
        Self::RdmaCore,
        #[cfg(feature = "rdma-sys")]
        Self::RdmaCoreLinked,
    ];

    /// Its name, as [`FromStr`] takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RdmaCore => "rdma-core",
            #[cfg(feature = "rdma-sys")]
            Self::RdmaCoreLinked => "rdma-core-linked",
        }
    }

    /// The provider that the environment variable `RPMA_PROVIDER` names; without it, or if it is empty, the default.
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownInEnv`].
    pub fn from_env() -> Result<Self, ProviderError> {
        let name = match env::var(PROVIDER_VARIABLE) {
            Ok(name) => name,
            Err(VarError::NotPresent) => String::new(),
            Err(VarError::NotUnicode(name)) => name.to_string_lossy().into_owned(),
        };
        if name.is_empty() {
            return Ok(Self::default());
        }
        name.parse().map_err(|_| ProviderError::UnknownInEnv { name })
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// [`ProviderError::Load`], which says what to install.
    pub fn open(self) -> Result<ProviderRef, ProviderError> {
        match self {
            Self::RdmaCore => Ok(RdmaCore::open()?),
            #[cfg(feature = "rdma-sys")]
            Self::RdmaCoreLinked => Ok(rpma_mr::sys::RdmaCoreLinked::open()),
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
}
