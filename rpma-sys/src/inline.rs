//! The functions that exist only inside rdma-core's headers, written out.
//!
//! They go through `verbs_context`, a structure that grows at its *front*: the library says with `sz` how much of it there is, and an
//! operation may be read only if it lies within. The exported symbols of some of these names are a frozen old ABI.
#![expect(unsafe_code, reason = "walks the C structures that rdma-core hands out")]

use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::ptr::null;

use crate::bindings::*;

/// The extended context around `context`, if the library made one: `verbs_get_ctx`.
///
/// # Safety
///
/// `context` is a live context of rdma-core.
unsafe fn verbs_context(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the context is live (contract above), and `abi_compat` has been its last field since libibverbs 1.1.
    let abi_compat = unsafe { (*context).abi_compat };
    // `__VERBS_ABI_IS_EXTENDED`: the context is embedded in a verbs_context.
    (abi_compat.addr() == usize::MAX).then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast())
}

/// Reads the operation at `offset` of the extended context, or `None` if this library's context has no such field or it is null.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {
        // SAFETY: `$context` is live by the contract of the calling function.
        unsafe { verbs_context($context) }.and_then(|extended| {
            // SAFETY: `sz` lies directly before the embedded context in every version of the structure.
            let sz = unsafe { (*extended).sz };
            if sz < size_of::<verbs_context>() - offset_of!(verbs_context, $op) {
                return None;
            }
            // SAFETY: the structure that the library allocated reaches back to this field (checked against `sz` above).
            unsafe { (*extended).$op }
        })
    };
}

/// `ibv_query_device_ex(3)`; `legacy` is the exported `ibv_query_device`, the answer of devices without the extended call.
///
/// # Safety
///
/// As the C function: `context` is live, `attr` is writable.
pub(crate) unsafe fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    legacy: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
) -> c_int {
    if let Some(query) = extended_op!(context, query_device_ex) {
        // SAFETY: arguments as the contract above; the size given is that of the structure behind `attr`, and the library
        // writes no more than it.
        let rc = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if rc != libc::EOPNOTSUPP && rc != libc::ENOSYS {
            return rc;
        }
    }
    // SAFETY: `attr` is writable (contract above).
    unsafe { attr.write(ibv_device_attr_ex::default()) };
    // SAFETY: `attr` is writable, and `orig_attr` is a field of it.
    let orig_attr = unsafe { &raw mut (*attr).orig_attr };
    // SAFETY: the context is live, and `orig_attr` points to a whole `ibv_device_attr`.
    unsafe { legacy(context, orig_attr) }
}

/// `ibv_query_port(3)`. Without the extended call the answer is ENOSYS: every rdma-core that we support (28 and newer) has it.
///
/// # Safety
///
/// As the C function: `context` is live, `attr` is writable.
pub(crate) unsafe fn query_port(context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
    match extended_op!(context, query_port) {
        // SAFETY: arguments as the contract above; the size is that of the structure behind `attr`.
        Some(query) => unsafe { query(context, port_num, attr, size_of::<ibv_port_attr>()) },
        None => libc::ENOSYS,
    }
}

/// `ibv_advise_mr(3)`.
///
/// # Safety
///
/// As the C function: `pd` is live, `sg_list` holds `num_sge` entries.
pub(crate) unsafe fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    // SAFETY: the protection domain is live (contract above), and so is its context.
    let context = unsafe { (*pd).context };
    match extended_op!(context, advise_mr) {
        // SAFETY: arguments as the contract above.
        Some(advise) => unsafe { advise(pd, advice, flags, sg_list, num_sge) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_device_attr_ex` is asked for with no input: `ibv_query_device_ex(3)`.
pub(crate) const NO_INPUT: *const ibv_query_device_ex_input = null();

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn port_answers_7(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr, len: usize) -> c_int {
        assert_eq!(len, size_of::<ibv_port_attr>());
        // SAFETY: the caller passes a whole `ibv_port_attr`.
        unsafe { (*attr).lid = 7 };
        0
    }

    /// A context as a library makes it whose `verbs_context` has `sz` bytes.
    fn context_of_size(sz: usize) -> Box<verbs_context> {
        let mut extended = Box::new(verbs_context { sz, query_port: Some(port_answers_7), ..Default::default() });
        extended.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        extended
    }

    fn query(extended: &mut verbs_context) -> (c_int, u16) {
        let mut attr = ibv_port_attr::default();
        let context = (&raw mut *extended).wrapping_byte_add(offset_of!(verbs_context, context)).cast();
        // SAFETY: the context lies in a whole verbs_context that lives through the call.
        let rc = unsafe { query_port(context, 1, &raw mut attr) };
        (rc, attr.lid)
    }

    #[test]
    fn operation_within_the_library_s_size_is_called() {
        assert_eq!(query(&mut context_of_size(size_of::<verbs_context>())), (0, 7));
    }

    #[test]
    fn operation_beyond_the_library_s_size_is_not_read() {
        let older = size_of::<verbs_context>() - offset_of!(verbs_context, query_port) - 1;
        assert_eq!(query(&mut context_of_size(older)), (libc::ENOSYS, 0));
    }

    #[test]
    fn context_without_the_extended_mark_has_no_operations() {
        let mut plain = context_of_size(size_of::<verbs_context>());
        plain.context.abi_compat = std::ptr::null_mut();
        assert_eq!(query(&mut plain), (libc::ENOSYS, 0));
    }
}
