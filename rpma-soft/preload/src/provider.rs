//! The software provider of this process.
#![expect(unsafe_code, reason = "asks the provider for its only context, and exports the mark of the door")]

use std::env;
use std::ffi::{c_char, c_int};
use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

use rpma_soft::{Soft, SoftConfig};
use rpma_sys::ProviderRef;
use rpma_sys::bindings::ibv_context;

/// Switches the native operations off: the door is the outermost layer, so it may read the environment.
const NATIVE_VARIABLE: &str = "RPMA_SOFT_NATIVE";

/// Tells `rpma-sys` that the door is loaded: its `RdmaCore` asks the loader for this name, and then opens nothing.
#[unsafe(no_mangle)]
static rpma_soft_preload: [c_char; 1] = [0];

/// The provider, and its context.
pub(crate) struct Opened {
    pub(crate) provider: ProviderRef,
    pub(crate) context: *mut ibv_context,
}

// SAFETY: the context lives as long as the provider, and its structure is C's, made to be shared by threads.
unsafe impl Send for Opened {}
// SAFETY: as for `Send`.
unsafe impl Sync for Opened {}

/// The provider; made by the first call that needs it. The errno tells why there is none.
pub(crate) fn get() -> Result<&'static Opened, c_int> {
    static OPENED: OnceLock<Opened> = OnceLock::new();
    if let Some(opened) = OPENED.get() {
        return Ok(opened);
    }
    let opened = open().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    Ok(OPENED.get_or_init(|| opened))
}

fn open() -> io::Result<Opened> {
    let config = config(env::var_os(NATIVE_VARIABLE).is_some_and(|native| native == "off"));
    let provider = Soft::with_config(config)?;
    // SAFETY: a null pointer says that the number of devices is not asked for.
    let list = unsafe { provider.rdma_get_devices(null_mut()) };
    // SAFETY: the list holds one context and a null pointer; the provider keeps the context alive, and we the provider.
    let context = unsafe { list.read() };
    // SAFETY: the list is the one that was just made.
    unsafe { provider.rdma_free_devices(list) };
    Ok(Opened { provider, context })
}

/// How long the door waits for a listener. C programs start their ends together (perftest does within one run, and crashes if it is
/// rejected), and the kernel's way of resolving addresses gives the other end time that ours does not.
const REFUSED_AFTER: Duration = Duration::from_secs(1);

fn config(plain: bool) -> SoftConfig {
    let mut config = SoftConfig::default();
    config.refused_after = REFUSED_AFTER;
    if plain { config.without_native_operations() } else { config }
}
