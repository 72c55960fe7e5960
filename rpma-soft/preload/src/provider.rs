//! The software provider of this process.
#![expect(unsafe_code, reason = "asks the provider for its only context, and exports the mark of the door")]

use std::env;
use std::ffi::{OsString, c_char, c_int};
use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

use rpma_soft::{Soft, SoftConfig};
use rpma_sys::ProviderRef;
use rpma_sys::bindings::ibv_context;

/// Switches the native operations off: the door is the outermost layer, so it may read the environment.
const NATIVE_VARIABLE: &str = "RPMA_SOFT_NATIVE";
/// How long a port on which nobody listens is tried again, in milliseconds.
const REFUSED_AFTER_VARIABLE: &str = "RPMA_SOFT_REFUSED_AFTER_MS";

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
    let config = config(|name| env::var_os(name));
    let provider = Soft::with_config(config)?;
    // SAFETY: a null pointer says that the number of devices is not asked for.
    let list = unsafe { provider.rdma_get_devices(null_mut()) };
    // SAFETY: the list holds one context and a null pointer; the provider keeps the context alive, and we the provider.
    let context = unsafe { list.read() };
    // SAFETY: the list is the one that was just made.
    unsafe { provider.rdma_free_devices(list) };
    Ok(Opened { provider, context })
}

/// How long the door waits for a listener unless the environment says otherwise. C programs start their ends together (perftest does
/// within one run, and crashes if it is rejected), and the kernel's way of resolving addresses gives the other end time that ours does not.
const REFUSED_AFTER: Duration = Duration::from_secs(1);

/// What the environment wants of the device.
fn config(variable: impl Fn(&str) -> Option<OsString>) -> SoftConfig {
    let mut config = SoftConfig::default();
    config.refused_after = REFUSED_AFTER;
    if let Some(text) = variable(REFUSED_AFTER_VARIABLE) {
        match text.to_str().and_then(|text| text.parse().ok()) {
            Some(ms) => config.refused_after = Duration::from_millis(ms),
            // A program that did not ask for this has no way to be told otherwise.
            None => {
                eprintln!("librpma_soft_preload.so: {REFUSED_AFTER_VARIABLE}={} is no number of milliseconds", text.display())
            }
        }
    }
    match variable(NATIVE_VARIABLE) {
        Some(native) if native == "off" => config.without_native_operations(),
        _ => config,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_switches_native_operations_off_and_says_how_long_a_listener_is_waited_for() {
        let with = |name: &'static str, value: &'static str| config(move |asked| (asked == name).then(|| value.into()));
        assert_eq!(config(|_| None).refused_after, REFUSED_AFTER);
        assert!(config(|_| None).native_flush);
        assert!(!with(NATIVE_VARIABLE, "off").native_flush);
        assert!(with(NATIVE_VARIABLE, "on").native_flush);
        assert_eq!(with(REFUSED_AFTER_VARIABLE, "0").refused_after, Duration::ZERO);
        assert_eq!(with(REFUSED_AFTER_VARIABLE, "soon").refused_after, REFUSED_AFTER);
    }
}
