//! rdma-core's three ways of returning an error, each turned into an [`io::Error`] by its own helper.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

/// For calls that return 0 or an errno: most of verbs, `ibv_modify_qp(3)` for one.
///
/// Some of them return -1 with `errno` set on the paths where libibverbs itself refuses, and soft-RoCE's posts a negative errno.
///
/// # Errors
///
/// The errno that was returned.
pub fn errno_ret(rc: c_int) -> io::Result<()> {
    match rc {
        0 => Ok(()),
        e if e > 0 => Err(io::Error::from_raw_os_error(e)),
        -1 => Err(io::Error::last_os_error()),
        e => Err(io::Error::from_raw_os_error(e.saturating_neg())),
    }
}

/// For calls that return a count, or a negative errno: the data path's `ibv_poll_cq(3)`. Some drivers have numbers of their own there
/// (-2 in mlx4 and mlx5), which are told as numbers.
///
/// # Errors
///
/// The errno whose negative was returned.
pub fn neg_errno_ret(rc: c_int) -> io::Result<usize> {
    usize::try_from(rc).map_err(|_| match rc {
        -1 | -2 => io::Error::other(format!("the device driver answers {rc}, and tells no errno")),
        _ => io::Error::from_raw_os_error(rc.saturating_neg()),
    })
}

/// For calls that return -1 and set `errno`: the connection manager, and `ibv_get_cq_event(3)`.
///
/// # Errors
///
/// The thread's `errno`.
pub fn minus1_ret(rc: c_int) -> io::Result<()> {
    if rc >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// For calls that return a pointer, null with `errno` set on failure: makes the call.
///
/// `errno` is cleared before it, since some device drivers return null and set nothing: that is told as such, and not as "Success" or
/// as the error of an earlier call.
///
/// # Errors
///
/// The thread's `errno`.
pub fn null_ret<T>(call: impl FnOnce() -> *mut T) -> io::Result<NonNull<T>> {
    crate::errno::set(0);
    NonNull::new(call()).ok_or_else(|| {
        let e = io::Error::last_os_error();
        if e.raw_os_error() == Some(0) { io::Error::other("the provider returned null and set no errno") } else { e }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_ret_takes_the_returned_errno() {
        assert_eq!(errno_ret(libc::ENOMEM).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert!(errno_ret(0).is_ok());
    }

    #[test]
    fn errno_ret_takes_errno_itself_for_minus_one_and_other_negatives_negated() {
        crate::errno::set(libc::EBUSY);
        assert_eq!(errno_ret(-1).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert_eq!(errno_ret(-libc::ENOMEM).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn neg_errno_ret_takes_the_negated_errno_and_keeps_counts() {
        assert_eq!(neg_errno_ret(-libc::EINVAL).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(neg_errno_ret(3).unwrap(), 3);
        assert!(neg_errno_ret(c_int::MIN).is_err());
        assert!(neg_errno_ret(-2).unwrap_err().to_string().contains("answers -2"));
    }

    #[test]
    fn minus1_ret_takes_the_thread_s_errno() {
        crate::errno::set(libc::EADDRNOTAVAIL);
        assert_eq!(minus1_ret(-1).unwrap_err().raw_os_error(), Some(libc::EADDRNOTAVAIL));
        assert!(minus1_ret(0).is_ok());
    }

    #[test]
    fn null_without_an_errno_is_told_as_such_whatever_failed_before() {
        crate::errno::set(libc::EACCES);
        assert!(null_ret::<u8>(std::ptr::null_mut).unwrap_err().to_string().contains("no errno"));
        let call = || {
            crate::errno::set(libc::ENOMEM);
            std::ptr::null_mut::<u8>()
        };
        assert_eq!(null_ret(call).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
