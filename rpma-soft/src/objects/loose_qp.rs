//! Queue pairs without an identifier of the connection manager.
#![expect(unsafe_code, reason = "makes structures of verbs")]

use std::io;
use std::sync::Arc;

use rpma_sys::bindings::*;

use super::connection::{Connection, invalid};
use super::event_channel::EventChannel;
use super::mr::of_pd;
use super::qp;

/// `ibv_create_qp(3)`. It is on a connection of its own, which no event ever reaches.
///
/// # Safety
///
/// What `attr` names is live.
pub(crate) unsafe fn create(attr: &mut ibv_qp_init_attr_ex) -> io::Result<*mut ibv_qp> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return Err(invalid());
    }
    // SAFETY: live (contract above).
    let device = Arc::clone(unsafe { of_pd(attr.pd) }.device());
    let connection = Connection::new(device, Arc::new(EventChannel::new()?))?;
    // SAFETY: the contract of this function.
    let made = unsafe { qp::create(&connection, attr) }?;
    let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
    // SAFETY: just made.
    match unsafe { qp::modify(made, &reset, IBV_QP_STATE.cast_signed()) } {
        0 => Ok(made),
        errno => {
            // SAFETY: just made, and nobody knows of it.
            unsafe { qp::destroy(made) };
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// `ibv_create_qp_ex(3)`, as headers call it: an operation of the context.
pub(crate) unsafe extern "C" fn create_qp_ex(_: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    let made = std::panic::catch_unwind(|| {
        // SAFETY: the program's, and whole (contract of the call).
        let attr = unsafe { &mut *attr };
        // SAFETY: what it names is live (contract of the call).
        unsafe { create(attr) }
    });
    made.unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EFAULT))).unwrap_or_else(|e| {
        rpma_sys::errno::set(e.raw_os_error().unwrap_or(libc::EIO));
        std::ptr::null_mut()
    })
}
