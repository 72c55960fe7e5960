//! How a call tells that it failed: one function for each convention of C, named as in the table of calls (`rpma-sys/src/calls.rs`).

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// The errno is returned.
pub(crate) fn errno(errno: c_int) -> c_int {
    errno
}

/// -1 is returned, and `errno` set.
pub(crate) fn minus1<R: From<i8>>(errno: c_int) -> R {
    rpma_sys::errno::set(errno);
    R::from(-1)
}

/// Null is returned, and `errno` set.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    rpma_sys::errno::set(errno);
    null_mut()
}

/// There is no way to tell.
pub(crate) fn infallible<R: Silent>(_: c_int) -> R {
    R::silence()
}

/// What a call returns that cannot tell failure.
pub(crate) trait Silent {
    fn silence() -> Self;
}

impl Silent for () {
    fn silence() {}
}

impl Silent for *const c_char {
    fn silence() -> Self {
        std::ptr::null()
    }
}

/// Runs the body of a call. A panic does not cross into C: it has been told on standard error, and the call fails.
pub(crate) fn guarded<R>(failed: impl FnOnce(c_int) -> R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| failed(libc::EIO))
}

/// Whether an argument is a pointer to nothing.
pub(crate) trait MaybeNull {
    fn is_missing(&self) -> bool;
}

impl<T> MaybeNull for *mut T {
    fn is_missing(&self) -> bool {
        self.is_null()
    }
}

impl<T> MaybeNull for *const T {
    fn is_missing(&self) -> bool {
        self.is_null()
    }
}

macro_rules! numbers_are_there {
    ($($number:ty)*) => {
        $(impl MaybeNull for $number {
            fn is_missing(&self) -> bool {
                false
            }
        })*
    };
}
numbers_are_there!(u8 u32 u64 i32 usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn thread_s_errno() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn each_convention_tells_the_errno_in_its_way() {
        rpma_sys::errno::set(0);
        assert_eq!(errno(libc::EINVAL), libc::EINVAL);
        assert_eq!(thread_s_errno(), Some(0));
        assert_eq!(minus1::<isize>(libc::EINVAL), -1);
        assert_eq!(thread_s_errno(), Some(libc::EINVAL));
        assert!(null::<u8>(libc::ENOMEM).is_null());
        assert_eq!(thread_s_errno(), Some(libc::ENOMEM));
        assert!(infallible::<*const c_char>(libc::EIO).is_null());
    }

    #[test]
    fn panic_of_a_call_is_a_failure_of_it() {
        assert_eq!(guarded(errno, || panic!("told on standard error")), libc::EIO);
        assert_eq!(guarded(errno, || 0), 0);
    }
}
