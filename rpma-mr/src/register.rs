//! Registering memory: which rights to ask for, what to do when they are refused, and what to say.

use std::fmt;
use std::io;

use rustix::io::Errno;

use crate::owner::Backing;
use crate::pd::provider_code;
use crate::{Access, Capabilities, ErrorCode, Transport, Usage};

/// Why memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum RegisterError {
    /// The range is empty or wraps the address space. A bug of the owner's, found before any call.
    #[error("cannot register {len_bytes} bytes at {addr:#x}: empty or wrapping range")]
    BadRange { addr: usize, len_bytes: usize },
    /// No usage was asked for. A caller bug, found before any call.
    #[error("cannot register memory for no usage")]
    NoUsage,
    /// A usage that writes, asked for memory that is mapped for reading only. A caller bug, found before any call.
    #[error("memory that is mapped for reading only can be registered for READ_SRC and SEND only, not for {refused:?}")]
    ReadOnly { refused: Usage },
    /// The owner says that its memory is not fit to be registered: a file that was truncated, for one.
    #[error("the memory is not fit to be registered")]
    Owner { source: io::Error },
    /// The pages cannot be pinned (EOPNOTSUPP), and the device cannot do without: it has no on-demand paging.
    #[error(
        "{backing} of {len_bytes} bytes cannot be registered: its pages cannot be pinned, as those of a file on a DAX file system cannot, \
         and the device has no on-demand paging; use device DAX (`ndctl create-namespace -m devdax`), anonymous memory, or a device and \
         kernel with on-demand paging"
    )]
    NeedsOnDemandPaging { backing: Backing, len_bytes: usize, source: io::Error },
    /// The kernel does not let the pages of an ordinary file be pinned for writing (EFAULT).
    #[error(
        "{backing} of {len_bytes} bytes cannot be registered for writing: this kernel does not let pages of an ordinary file be pinned; \
         use persistent memory (device DAX, or a DAX file system with on-demand paging), a file on tmpfs, anonymous memory, or the \
         software provider (RPMA_PROVIDER=soft)"
    )]
    CannotPin { backing: Backing, len_bytes: usize, source: io::Error },
    /// The kernel does not pin memory that is mapped for reading only (EFAULT): Linux before 6.2 pins for writing, whatever is asked.
    #[error(
        "{backing} of {len_bytes} bytes, mapped for reading only, cannot be registered: this kernel pins pages for writing only, as Linux \
         before 6.2 does; map it for writing too, or copy it to anonymous memory"
    )]
    CannotPinReadOnly { backing: Backing, len_bytes: usize, source: io::Error },
    /// Out of memory (ENOMEM), which in most cases is the limit on locked memory.
    #[error(
        "no memory to register {len_bytes} bytes: pages are pinned, and RLIMIT_MEMLOCK allows {}; raise it (`ulimit -l`, \
         /etc/security/limits.conf, LimitMEMLOCK= of systemd)",
        Limit(*.memlock_bytes)
    )]
    NoMemory { len_bytes: usize, memlock_bytes: Option<u64>, source: io::Error },
    /// The provider refused for another reason.
    #[error("the provider refused to register {len_bytes} bytes of {backing} with {access:?}")]
    Provider { backing: Backing, len_bytes: usize, access: Access, source: io::Error },
}

struct Limit(Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes"),
            None => f.write_str("any number of bytes"),
        }
    }
}

impl RegisterError {
    /// The C library's code for this error. Out of memory is a failure of the provider there, as it is in the C library: its
    /// `RPMA_E_NOMEM` is for its own small allocations.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::BadRange { .. } | Self::NoUsage | Self::ReadOnly { .. } | Self::Owner { .. } => ErrorCode::InvalidArgument,
            Self::NeedsOnDemandPaging { .. }
            | Self::CannotPin { .. }
            | Self::CannotPinReadOnly { .. }
            | Self::NoMemory { .. } => ErrorCode::Provider,
            Self::Provider { source, .. } => provider_code(source),
        }
    }
}

/// A failed registration: why, and the owner back.
///
/// ```
/// use rpma_mr::{AnonPages, Device, ProtectionDomain, RegisterError, Usage};
///
/// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
/// # let pd = ProtectionDomain::new(&device)?;
/// let failure = pd.register(AnonPages::new(4096)?, Usage::empty()).expect_err("no usage");
/// assert!(matches!(failure.error, RegisterError::NoUsage));
/// let region = pd.register(failure.owner, Usage::READ_SRC)?; // the memory was not lost
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RegisterFailure<M> {
    /// What was to be registered, unchanged.
    pub owner: M,
    /// Why it could not be.
    pub error: RegisterError,
}

// By hand: an owner need not be `Debug`, and is not what one wants to read.
impl<M> fmt::Debug for RegisterFailure<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterFailure").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for RegisterFailure<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for RegisterFailure<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The error itself is what is displayed, so the next one is its source.
        self.error.source()
    }
}

impl<M> From<RegisterFailure<M>> for RegisterError {
    fn from(failure: RegisterFailure<M>) -> Self {
        failure.error
    }
}

/// What is to be registered, and on what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) addr: usize,
    pub(crate) len_bytes: usize,
    pub(crate) writable: bool,
    pub(crate) backing: Backing,
    pub(crate) usage: Usage,
    pub(crate) transport: Transport,
    pub(crate) capabilities: Capabilities,
}

/// A registration that succeeded.
#[derive(Debug)]
pub(crate) struct Granted<T> {
    pub(crate) region: T,
    /// What the region can be used for: what was asked for, or, with a right refused, the truth.
    pub(crate) usage: Usage,
    pub(crate) is_on_demand: bool,
}

/// What a region whose memory cannot be written can be used for.
const READ_ONLY_USAGES: Usage = Usage::READ_SRC.union(Usage::SEND);

impl Request {
    /// What can be told before any call.
    pub(crate) fn check(&self) -> Result<(), RegisterError> {
        if self.len_bytes == 0 || self.addr.checked_add(self.len_bytes).is_none() {
            return Err(RegisterError::BadRange { addr: self.addr, len_bytes: self.len_bytes });
        }
        if self.usage.is_empty() {
            return Err(RegisterError::NoUsage);
        }
        let refused = self.usage.difference(READ_ONLY_USAGES);
        if !self.writable && !refused.is_empty() {
            return Err(RegisterError::ReadOnly { refused });
        }
        Ok(())
    }

    /// Registers by calls of `attempt`, each with the rights to ask for. Each remedy is tried once:
    ///
    /// - EOPNOTSUPP: the pages cannot be pinned; once more on demand, where the device can;
    /// - EINVAL with the right to flush to persistence: the memory is not persistent (soft-RoCE refuses it so); once more without
    ///   that right, and the usage then says visibility in its place.
    pub(crate) fn run<T>(&self, mut attempt: impl FnMut(Access) -> io::Result<T>) -> Result<Granted<T>, RegisterError> {
        let mut usage = self.usage;
        let mut is_on_demand = false;
        loop {
            let mut access = Access::for_usage(usage, self.transport, self.capabilities.native_flush);
            access.set(Access::ON_DEMAND, is_on_demand);
            let error = match attempt(access) {
                Ok(region) => {
                    if usage != self.usage {
                        log::warn!(
                            "the device does not take {} of {} bytes for persistent memory: registered for FLUSH_TYPE_VISIBILITY in \
                             place of FLUSH_TYPE_PERSISTENT",
                            self.backing,
                            self.len_bytes
                        );
                    }
                    return Ok(Granted { region, usage, is_on_demand });
                }
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::OPNOTSUPP) if self.capabilities.on_demand_paging && !is_on_demand => is_on_demand = true,
                Some(Errno::INVAL) if access.contains(Access::FLUSH_PERSISTENT) => {
                    usage = usage.difference(Usage::FLUSH_TYPE_PERSISTENT).union(Usage::FLUSH_TYPE_VISIBILITY);
                }
                errno => return Err(self.refusal(errno, access, error)),
            }
        }
    }

    fn refusal(&self, errno: Option<Errno>, access: Access, source: io::Error) -> RegisterError {
        let Self { backing, len_bytes, .. } = *self;
        match errno {
            Some(Errno::OPNOTSUPP) if !access.contains(Access::ON_DEMAND) => {
                RegisterError::NeedsOnDemandPaging { backing, len_bytes, source }
            }
            Some(Errno::FAULT) if !self.writable => RegisterError::CannotPinReadOnly { backing, len_bytes, source },
            // Whoever brings memory of their own may have mapped a file too.
            Some(Errno::FAULT)
                if access.contains(Access::LOCAL_WRITE)
                    && matches!(backing, Backing::File | Backing::DaxFile | Backing::Other) =>
            {
                RegisterError::CannotPin { backing, len_bytes, source }
            }
            Some(Errno::NOMEM) => {
                let memlock_bytes = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
                RegisterError::NoMemory { len_bytes, memlock_bytes, source }
            }
            _ => RegisterError::Provider { backing, len_bytes, access, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    const EINVAL: i32 = 22;
    const ENOMEM: i32 = 12;
    const EFAULT: i32 = 14;
    const EOPNOTSUPP: i32 = 95;

    const PERSISTENT: Usage = Usage::WRITE_DST.union(Usage::FLUSH_TYPE_PERSISTENT);
    const VISIBILITY: Usage = Usage::WRITE_DST.union(Usage::FLUSH_TYPE_VISIBILITY);

    fn request(usage: Usage) -> Request {
        Request {
            addr: 0x1000,
            len_bytes: 4096,
            writable: true,
            backing: Backing::Anonymous,
            usage,
            transport: Transport::InfiniBand,
            capabilities: Capabilities::default(),
        }
    }

    fn capabilities(on_demand_paging: bool, native_flush: bool) -> Capabilities {
        Capabilities { on_demand_paging, native_flush, ..Capabilities::default() }
    }

    /// Runs a request against scripted errnos (0: success). Gives the result, and the rights that each attempt asked for.
    fn run(request: &Request, script: &[i32]) -> (Result<Granted<()>, RegisterError>, Vec<Access>) {
        let mut script = script.iter();
        let mut asked = Vec::new();
        let result = request.run(|access| {
            asked.push(access);
            match script.next().expect("one attempt more than the script has") {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(*errno)),
            }
        });
        assert_eq!(script.next(), None, "an attempt less than the script has");
        (result, asked)
    }

    #[test]
    fn registration_that_succeeds_grants_what_was_asked() {
        let (granted, asked) = run(&Request { capabilities: capabilities(true, true), ..request(PERSISTENT) }, &[0]);
        let granted = granted.unwrap();
        assert_eq!((granted.usage, granted.is_on_demand), (PERSISTENT, false));
        assert_eq!(asked, [Access::for_usage(PERSISTENT, Transport::InfiniBand, true)]);
    }

    #[test]
    fn pages_that_cannot_be_pinned_are_registered_on_demand_once() {
        let request = Request { capabilities: capabilities(true, false), ..request(PERSISTENT) };
        let rights = Access::for_usage(PERSISTENT, Transport::InfiniBand, false);

        let (granted, asked) = run(&request, &[EOPNOTSUPP, 0]);
        let granted = granted.unwrap();
        assert_eq!((granted.usage, granted.is_on_demand), (PERSISTENT, true));
        assert_eq!(asked, [rights, rights | Access::ON_DEMAND]);

        let (refused, asked) = run(&request, &[EOPNOTSUPP, EOPNOTSUPP]);
        assert!(matches!(refused, Err(RegisterError::Provider { .. })), "{refused:?}");
        assert_eq!(asked.len(), 2);
    }

    #[test]
    fn pages_that_cannot_be_pinned_without_on_demand_paging_name_the_cause() {
        let request = Request { backing: Backing::DaxFile, ..request(PERSISTENT) };
        let (refused, asked) = run(&request, &[EOPNOTSUPP]);
        let error = refused.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("on-demand paging") && text.contains("DAX") && text.contains("4096 bytes"), "{text}");
        assert_eq!(error.code(), ErrorCode::Provider);
        assert_eq!(asked.len(), 1);
    }

    #[test]
    fn other_errnos_are_not_tried_again() {
        let request = Request { capabilities: capabilities(true, true), ..request(Usage::WRITE_DST) };
        for errno in [EINVAL, ENOMEM, EFAULT, 1, 5, 13, 16, 22, 38] {
            let (refused, asked) = run(&request, &[errno]);
            assert!(refused.is_err(), "{errno}");
            assert_eq!(asked.len(), 1, "{errno}");
        }
    }

    #[test]
    fn memory_that_is_not_persistent_is_granted_visibility_in_place_of_persistence() {
        let request = Request { capabilities: capabilities(false, true), ..request(PERSISTENT) };
        let (granted, asked) = run(&request, &[EINVAL, 0]);
        assert_eq!(granted.unwrap().usage, VISIBILITY);
        assert_eq!(asked[0], Access::for_usage(PERSISTENT, Transport::InfiniBand, true));
        assert_eq!(asked[1], Access::for_usage(VISIBILITY, Transport::InfiniBand, true));
        assert!(asked[1].contains(Access::FLUSH_GLOBAL | Access::REMOTE_READ));

        // A second refusal has another cause.
        let (refused, asked) = run(&request, &[EINVAL, EINVAL]);
        assert!(matches!(refused, Err(RegisterError::Provider { .. })), "{refused:?}");
        assert_eq!(asked.len(), 2);
    }

    #[test]
    fn device_without_native_flush_cannot_tell_and_the_usage_stays_as_asked() {
        let (refused, asked) = run(&request(PERSISTENT), &[EINVAL]);
        assert!(refused.is_err());
        assert_eq!(asked.len(), 1);
        assert_eq!(run(&request(PERSISTENT), &[0]).0.unwrap().usage, PERSISTENT);
    }

    #[test]
    fn both_remedies_can_be_needed_in_either_order() {
        let request = Request { capabilities: capabilities(true, true), ..request(PERSISTENT) };
        let last = Access::for_usage(VISIBILITY, Transport::InfiniBand, true) | Access::ON_DEMAND;
        for script in [[EOPNOTSUPP, EINVAL, 0], [EINVAL, EOPNOTSUPP, 0]] {
            let (granted, asked) = run(&request, &script);
            let granted = granted.unwrap();
            assert_eq!((granted.usage, granted.is_on_demand), (VISIBILITY, true));
            assert_eq!(asked.last(), Some(&last));
        }
        let (refused, _) = run(&request, &[EOPNOTSUPP, EINVAL, EOPNOTSUPP]);
        assert!(matches!(refused, Err(RegisterError::Provider { .. })), "{refused:?}");
    }

    #[test]
    fn file_whose_pages_cannot_be_pinned_for_writing_names_the_choices() {
        for backing in [Backing::File, Backing::DaxFile, Backing::Other] {
            let error = run(&Request { backing, ..request(Usage::RECV) }, &[EFAULT]).0.unwrap_err();
            let text = error.to_string();
            for choice in ["DAX", "tmpfs", "anonymous memory", "software provider"] {
                assert!(text.contains(choice), "{text}");
            }
            assert_eq!(error.code(), ErrorCode::Provider);
            assert!(error.source().is_some());
        }
        // Not a file, or not for writing: the cause is another one.
        for (backing, usage) in
            [(Backing::Anonymous, Usage::RECV), (Backing::DaxDevice, Usage::RECV), (Backing::File, Usage::READ_SRC)]
        {
            let error = run(&Request { backing, ..request(usage) }, &[EFAULT]).0.unwrap_err();
            assert!(matches!(error, RegisterError::Provider { .. }), "{backing:?}: {error:?}");
        }
    }

    #[test]
    fn memory_for_reading_only_that_cannot_be_pinned_names_the_kernel_as_the_cause() {
        let request = Request { writable: false, backing: Backing::File, ..request(Usage::READ_SRC) };
        let (refused, asked) = run(&request, &[EFAULT]);
        let error = refused.unwrap_err();
        assert!(matches!(error, RegisterError::CannotPinReadOnly { len_bytes: 4096, .. }), "{error:?}");
        assert!(error.to_string().contains("before 6.2"), "{error}");
        assert_eq!((error.code(), asked.len()), (ErrorCode::Provider, 1));
    }

    #[test]
    fn out_of_memory_names_the_size_and_the_limit_on_locked_memory() {
        let error = run(&request(Usage::SEND), &[ENOMEM]).0.unwrap_err();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        assert!(
            matches!(error, RegisterError::NoMemory { len_bytes: 4096, memlock_bytes, .. } if memlock_bytes == limit),
            "{error:?}"
        );
        let text = |memlock_bytes| {
            let source = io::Error::from_raw_os_error(ENOMEM);
            RegisterError::NoMemory { len_bytes: 4096, memlock_bytes, source }.to_string()
        };
        assert!(text(Some(65536)).contains("4096 bytes") && text(Some(65536)).contains("65536 bytes"), "{}", text(Some(65536)));
        assert!(text(None).contains("any number of bytes"), "{}", text(None));
    }

    #[test]
    fn caller_errors_are_found_before_any_attempt() {
        let rows = [
            Request { len_bytes: 0, ..request(Usage::SEND) },
            Request { addr: usize::MAX - 4095, ..request(Usage::SEND) },
            request(Usage::empty()),
        ];
        for request in rows {
            assert_eq!(request.check().unwrap_err().code(), ErrorCode::InvalidArgument, "{request:?}");
        }
    }

    #[test]
    fn memory_for_reading_only_takes_exactly_the_usages_that_never_write() {
        for mask in 1..=u8::MAX {
            let usage = Usage::from_bits_retain(mask);
            let result = Request { writable: false, ..request(usage) }.check();
            // READ_SRC is 0x01 and SEND is 0x40.
            if mask & !0x41 == 0 {
                result.unwrap();
            } else {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, RegisterError::ReadOnly { refused } if refused.bits() == mask & !0x41),
                    "{usage:?}: {error:?}"
                );
                assert_eq!(error.code(), ErrorCode::InvalidArgument);
            }
        }
    }

    #[test]
    fn failure_shows_its_error_once_and_keeps_the_cause() {
        let error = run(&request(Usage::SEND), &[5]).0.unwrap_err();
        let (text, cause) = (error.to_string(), error.source().unwrap().to_string());
        let failure = RegisterFailure { owner: (), error };
        assert_eq!(failure.to_string(), text);
        assert_eq!(failure.source().unwrap().to_string(), cause);
        assert!(format!("{failure:?}").contains("Provider"));
        assert_eq!(RegisterError::from(failure).to_string(), text);
    }
}
