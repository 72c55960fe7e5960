//! The rdma-core provider: `libibverbs.so.1` and `librdmacm.so.1`, opened at run time.
#![expect(unsafe_code, reason = "calls into rdma-core; the contract of each call is that of the trait, Provider")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::{Arc, OnceLock};

use libloading::Library;

use crate::bindings::*;
use crate::calls::for_each_call;
use crate::inline;
use crate::provider::{CqOps, Provider, ProviderRef, QpExOps, QpOps, SrqOps, WrBuilders};

const VERBS: &str = "libibverbs.so.1";
const CM: &str = "librdmacm.so.1";

/// Why rdma-core could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum LoadError {
    /// The dynamic loader does not find the library, or one that it needs.
    #[error(
        "{library} cannot be opened: rdma-core is not installed; install it \
         (Debian, Ubuntu: apt-get install ibverbs-providers librdmacm1; Fedora, RHEL: dnf install libibverbs librdmacm)"
    )]
    Missing { library: &'static str, source: libloading::Error },
    /// The library is there but lacks a function that rdma-core 28 has.
    #[error(
        "{library} has no {symbol}: rdma-core is too old; version 28 or newer is needed (`dpkg -s libibverbs1` or `rpm -q libibverbs` tells which this is)"
    )]
    TooOld { library: &'static str, symbol: &'static str, source: libloading::Error },
    /// The C door of `rpma-soft` is preloaded. The libraries of rdma-core would call each other through it, with structures of both.
    #[error(
        "the C door of rpma-soft (librpma_soft_preload.so) is loaded in this process and stands before rdma-core: \
         unset LD_PRELOAD, or use the software provider itself (RPMA_PROVIDER=soft)"
    )]
    BehindDoor,
}

/// Whether the C door of `rpma-soft` is among the libraries that the loader asks first.
fn is_behind_door() -> bool {
    // SAFETY: a name that ends with 0; nothing is opened, and the address is not used.
    let mark = unsafe { libc::dlsym(libc::RTLD_DEFAULT, DOOR_MARK.as_ptr()) };
    !mark.is_null()
}

/// The door exports this name for us to find (`rpma-soft/preload/src/provider.rs`).
const DOOR_MARK: &CStr = c"rpma_soft_preload";

/// Opens a library for the life of the process.
fn open(library: &'static str) -> Result<&'static Library, LoadError> {
    // SAFETY: the libraries of rdma-core have initialisers that are safe to run from any thread: they read the environment and
    // register fork handlers. Nothing else of the name is meant to be installed.
    let opened = unsafe { Library::new(library) };
    let opened = opened.map_err(|source| LoadError::Missing { library, source })?;
    // Never closed: function pointers into it live in every queue, and its device drivers cannot be unloaded.
    Ok(Box::leak(Box::new(opened)))
}

/// Each with its file name, for messages.
struct Libraries {
    verbs: (&'static Library, &'static str),
    cm: (&'static Library, &'static str),
}

/// # Safety
///
/// `T` is the type of the function of that name.
unsafe fn symbol<T: Copy>((library, file): (&'static Library, &'static str), name: &'static str) -> Result<T, LoadError> {
    // SAFETY: the type is right (contract above), and the library is never closed, so the pointer stays valid.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    match found {
        Ok(found) => Ok(*found),
        Err(source) => Err(LoadError::TooOld { library: file, symbol: name, source }),
    }
}

type QueryDeviceFn = unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
type QpToQpExFn = unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;

macro_rules! rdma_core {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($inline:tt)* }
    ) => {
        /// The exported functions that we call. How they were found, by name or by linking, is told by who fills this.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct Symbols {
            $(pub(crate) $ename: unsafe extern "C" fn($($ety),*) -> $eret,)*
            pub(crate) ibv_query_device: QueryDeviceFn,
            pub(crate) ibv_qp_to_qp_ex: QpToQpExFn,
        }

        impl Symbols {
            fn open(verbs: &'static str, cm: &'static str) -> Result<Self, LoadError> {
                let libraries = Libraries { verbs: (open(verbs)?, verbs), cm: (open(cm)?, cm) };
                Ok(Self {
                    $($ename: {
                        // SAFETY: the type in rdma-core's headers (calls.rs), which its ABI keeps for ever under this name and soname.
                        unsafe { symbol(libraries.$lib, stringify!($ename)) }?
                    },)*
                    ibv_query_device: {
                        // SAFETY: as above; the exported function of this name fills the structure as it was in version 1.1 of the ABI.
                        unsafe { symbol(libraries.verbs, "ibv_query_device") }?
                    },
                    ibv_qp_to_qp_ex: {
                        // SAFETY: as above.
                        unsafe { symbol(libraries.verbs, "ibv_qp_to_qp_ex") }?
                    },
                })
            }
        }

        // SAFETY: rdma-core is what the trait's contract describes: its calls are thread-safe, its objects live until they are
        // freed, and a driver waits for the device in `ibv_dereg_mr`.
        unsafe impl Provider for RdmaCore {
            fn name(&self) -> &'static str {
                self.name
            }

            $(unsafe fn $ename(&self, $($earg: $ety),*) -> $eret {
                // SAFETY: the C function itself, under the contract that the caller of this method accepted.
                unsafe { (self.symbols.$ename)($($earg),*) }
            })*

            unsafe fn ibv_query_device_ex(&self, context: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex) -> c_int {
                // SAFETY: the contract that the caller of this method accepted.
                unsafe { inline::query_device_ex(context, input, attr, self.symbols.ibv_query_device) }
            }

            unsafe fn ibv_query_port(&self, context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
                // SAFETY: the contract that the caller of this method accepted.
                unsafe { inline::query_port(context, port_num, attr) }
            }

            unsafe fn ibv_advise_mr(&self, pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int {
                // SAFETY: the contract that the caller of this method accepted.
                unsafe { inline::advise_mr(pd, advice, flags, sg_list, num_sge) }
            }

            unsafe fn qp_ops(&self, qp: *mut ibv_qp, send_ops_flags: u64) -> io::Result<QpOps> {
                // SAFETY: `qp` is live by the contract of this method.
                unsafe { read_qp_ops(qp, send_ops_flags, self.symbols.ibv_qp_to_qp_ex) }
            }

            unsafe fn cq_ops(&self, cq: *mut ibv_cq) -> io::Result<CqOps> {
                // SAFETY: `cq` is live by the contract of this method, and keeps its context.
                let context = unsafe { (*cq).context };
                // SAFETY: the context is live; its `ops` are in every version of the structure, and we read them by copy.
                let ops = unsafe { (*context).ops };
                Ok(CqOps {
                    poll_cq: ops.poll_cq.ok_or_else(|| missing("poll_cq"))?,
                    req_notify_cq: ops.req_notify_cq.ok_or_else(|| missing("req_notify_cq"))?,
                })
            }

            unsafe fn srq_ops(&self, srq: *mut ibv_srq) -> io::Result<SrqOps> {
                // SAFETY: `srq` is live by the contract of this method, and keeps its context.
                let context = unsafe { (*srq).context };
                // SAFETY: as in `cq_ops`.
                let ops = unsafe { (*context).ops };
                Ok(SrqOps { post_srq_recv: ops.post_srq_recv.ok_or_else(|| missing("post_srq_recv"))? })
            }
        }
    };
}
for_each_call!(rdma_core);

/// rdma-core, as it is installed on this machine.
#[derive(Debug)]
pub struct RdmaCore {
    name: &'static str,
    symbols: Symbols,
}

impl RdmaCore {
    /// Opens rdma-core's libraries: once per process, later calls return the same provider.
    ///
    /// This needs no device and no permission; those are asked for by what is made with the provider.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a library is missing or too old, or if the C door of `rpma-soft` stands before it. Nothing is remembered of a
    /// failure: it can be tried again.
    pub fn open() -> Result<ProviderRef, LoadError> {
        static OPENED: OnceLock<Arc<RdmaCore>> = OnceLock::new();
        if let Some(opened) = OPENED.get() {
            return Ok(Arc::clone(opened) as ProviderRef);
        }
        if is_behind_door() {
            return Err(LoadError::BehindDoor);
        }
        let symbols = Symbols::open(VERBS, CM)?;
        let opened = OPENED.get_or_init(|| Arc::new(Self { name: "rdma-core", symbols }));
        Ok(Arc::clone(opened) as ProviderRef)
    }

    /// The functions of rdma-core as one other file exports them all: [`testing::exported_by`](crate::testing::exported_by).
    #[cfg(feature = "testing")]
    pub(crate) fn exported_by(name: &'static str, file: &'static str) -> Result<ProviderRef, LoadError> {
        Ok(Arc::new(Self { name, symbols: Symbols::open(file, file)? }) as ProviderRef)
    }

    #[cfg(feature = "rdma-sys")]
    pub(crate) fn with_symbols(name: &'static str, symbols: Symbols) -> Self {
        Self { name, symbols }
    }
}

fn missing(op: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("the device driver provides no {op}"))
}

/// # Safety
///
/// `qp` is live and was made with exactly `send_ops_flags`.
unsafe fn read_qp_ops(qp: *mut ibv_qp, send_ops_flags: u64, to_ex: QpToQpExFn) -> io::Result<QpOps> {
    // SAFETY: `qp` is live (contract above), and keeps its context.
    let context = unsafe { (*qp).context };
    // SAFETY: the context is live; its `ops` are in every version of the structure, and we read them by copy.
    let ops = unsafe { (*context).ops };
    let ex = if send_ops_flags == 0 {
        None
    } else {
        // SAFETY: `qp` is live.
        let qp_ex = unsafe { to_ex(qp) };
        if qp_ex.is_null() {
            return Err(missing("extended queue pair"));
        }
        // SAFETY: a non-null extended queue pair starts with these fields since rdma-core 24.
        let wr_start = unsafe { (*qp_ex).wr_start };
        // SAFETY: as for `wr_start`.
        let wr_complete = unsafe { (*qp_ex).wr_complete };
        // SAFETY: as for `wr_start`.
        let wr_abort = unsafe { (*qp_ex).wr_abort };
        // `wr_flush` and `wr_atomic_write` are at the structure's end and younger than our oldest rdma-core, where something else
        // stands in their place. A library that created a queue pair with the flag has the field.
        let wr_flush = if send_ops_flags & u64::from(IBV_QP_EX_WITH_FLUSH) == 0 {
            None
        } else {
            // SAFETY: created with the flag, so the field exists (see above).
            Some(unsafe { (*qp_ex).wr_flush }.ok_or_else(|| missing("wr_flush"))?)
        };
        let wr_atomic_write = if send_ops_flags & u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE) == 0 {
            None
        } else {
            // SAFETY: created with the flag, so the field exists (see above).
            Some(unsafe { (*qp_ex).wr_atomic_write }.ok_or_else(|| missing("wr_atomic_write"))?)
        };
        let builders = if send_ops_flags & WrBuilders::FLAGS == WrBuilders::FLAGS {
            // SAFETY: live, and created with the flags.
            Some(unsafe { WrBuilders::of(qp_ex) }.map_err(missing)?)
        } else {
            None
        };
        Some(QpExOps {
            qp_ex,
            wr_start: wr_start.ok_or_else(|| missing("wr_start"))?,
            wr_complete: wr_complete.ok_or_else(|| missing("wr_complete"))?,
            wr_abort: wr_abort.ok_or_else(|| missing("wr_abort"))?,
            wr_flush,
            wr_atomic_write,
            builders,
        })
    };
    Ok(QpOps {
        post_send: ops.post_send.ok_or_else(|| missing("post_send"))?,
        post_recv: ops.post_recv.ok_or_else(|| missing("post_recv"))?,
        ex,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_that_is_not_installed_is_an_error_that_says_what_to_install() {
        let error = Symbols::open("librpma-no-such-library.so.1", CM).unwrap_err();
        let LoadError::Missing { library, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*library, "librpma-no-such-library.so.1");
        assert!(error.to_string().contains("apt-get install ibverbs-providers librdmacm1"), "{error}");
    }

    #[test]
    fn second_library_that_is_not_installed_is_named_too() {
        // The first one is on every machine, and its functions are not asked for before both are open.
        let error = Symbols::open("libc.so.6", "librpma-no-such-library.so.1").unwrap_err();
        assert!(matches!(error, LoadError::Missing { library: "librpma-no-such-library.so.1", .. }), "{error:?}");
    }

    #[test]
    fn library_without_our_functions_is_too_old() {
        let error = Symbols::open("libc.so.6", "libc.so.6").unwrap_err();
        assert!(matches!(error, LoadError::TooOld { library: "libc.so.6", .. }), "{error:?}");
        assert!(error.to_string().contains("version 28 or newer is needed"), "{error}");
    }
}
