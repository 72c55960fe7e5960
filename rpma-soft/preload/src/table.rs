//! The calls of the boundary, as C functions: each goes to the method of its name.
#![expect(unsafe_code, reason = "exports C functions, whose contracts are those of the provider's methods")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use rpma_sys::bindings::*;

use crate::answer::{self, MaybeNull, guarded};
use crate::provider;

macro_rules! exports {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($inline:tt)* }
    ) => {
        $(
            $(#[$edoc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $ename($($earg: $ety),*) -> $eret {
                let missing: &[bool] = &[$($earg.is_missing()),*];
                if missing.first() == Some(&true) && !first_may_be_null(stringify!($ename)) {
                    return answer::$econv(libc::EINVAL);
                }
                guarded(answer::$econv, || match provider::get() {
                    // SAFETY: the caller owes what the man page of this function asks for, and that is the contract of the method.
                    Ok(opened) => unsafe { opened.provider.$ename($($earg),*) },
                    Err(errno) => answer::$econv(errno),
                })
            }
        )*
    };
}
rpma_sys::for_each_call!(exports);

/// Whether null has a meaning as the first argument of a call. Elsewhere it is the caller's mistake, and EINVAL.
fn first_may_be_null(call: &str) -> bool {
    // No event channel: the identifier is synchronous. No place for the number of devices.
    matches!(call, "rdma_create_id" | "rdma_get_devices")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn null_handle_is_refused_in_the_convention_of_the_call() {
        let errno = || io::Error::last_os_error().raw_os_error();
        rpma_sys::errno::set(0);
        // SAFETY: null is refused before anything is done.
        assert_eq!(unsafe { ibv_dealloc_pd(null_mut()) }, libc::EINVAL);
        assert_eq!(errno(), Some(0));
        // SAFETY: as above.
        assert_eq!(unsafe { rdma_listen(null_mut(), 1) }, -1);
        assert_eq!(errno(), Some(libc::EINVAL));
        rpma_sys::errno::set(0);
        // SAFETY: as above.
        assert!(unsafe { ibv_alloc_pd(null_mut()) }.is_null());
        assert_eq!(errno(), Some(libc::EINVAL));
    }
}
