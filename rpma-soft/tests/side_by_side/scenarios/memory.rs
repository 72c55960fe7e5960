//! Registration.

use std::rc::Rc;

use rpma_sys::bindings::*;
use rustix::param::page_size;

use super::{Scenario, Seen};
use crate::verbs::memory::{ALL as EVERYTHING, Pages};
use crate::verbs::{Mr, Pd, Setup, told};

pub(super) const ALL: &[Scenario] = &[("registration", ranges), ("registration with rights", rights)];

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn ranges(setup: &Setup, seen: &mut Seen) {
    let pd = Pd::alloc(setup);
    let size = page_size();
    let pages = Pages::map(3, RW);
    let mut of = |name: &str, pages: &Rc<Pages>, offset, len, access| {
        seen.put(name, told(&Mr::register(setup, &pd, pages, offset, len, access)));
    };
    of("one byte", &pages, 5, 1, EVERYTHING);
    of("a length that is no multiple of anything, across pages", &pages, 7, size + 11, EVERYTHING);
    of("length 0", &pages, 0, 0, EVERYTHING);
    of("a range that wraps", &pages, 0, usize::MAX, EVERYTHING);
    of("the end of the address space", &pages, 0, usize::MAX / 2, EVERYTHING);
    pages.close_page(1);
    of("a page that may not be touched", &pages, size, size, EVERYTHING);
    of("such a page in the middle", &pages, 0, 3 * size, EVERYTHING);
    let constant = Pages::map(1, libc::PROT_READ);
    of("read-only memory to read", &constant, 0, size, IBV_ACCESS_REMOTE_READ);
    of("read-only memory to write locally", &constant, 0, size, IBV_ACCESS_LOCAL_WRITE);
    of("read-only memory to write", &constant, 0, size, EVERYTHING);
    let closed = Pages::map(1, libc::PROT_NONE);
    of("memory that may not be read", &closed, 0, size, IBV_ACCESS_REMOTE_READ);
}

fn rights(setup: &Setup, seen: &mut Seen) {
    let pd = Pd::alloc(setup);
    let pages = Pages::map(1, RW);
    let mut with = |name: &str, access| {
        let mr = Mr::register(setup, &pd, &pages, 0, page_size(), access);
        let keys = mr.as_ref().map_or("", |mr| if mr.lkey == mr.rkey { ", one key" } else { ", two keys" });
        seen.put(name, format!("{}{keys}", told(&mr)));
    };
    with("none", 0);
    with("remote read", IBV_ACCESS_REMOTE_READ);
    with("remote write without local write", IBV_ACCESS_REMOTE_WRITE);
    with("remote atomic without local write", IBV_ACCESS_REMOTE_ATOMIC);
    with("everything", EVERYTHING);
    with("binding of windows", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    with("zero-based", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
    with("on demand", EVERYTHING | IBV_ACCESS_ON_DEMAND);
    with("huge pages", EVERYTHING | IBV_ACCESS_HUGETLB);
    with("relaxed ordering", EVERYTHING | IBV_ACCESS_RELAXED_ORDERING);
    with("another optional bit", EVERYTHING | 1 << 27);
    with("a bit that means nothing", EVERYTHING | 1 << 15);
    with("flush globally", EVERYTHING | IBV_ACCESS_FLUSH_GLOBAL);
    with("flush globally without local write", IBV_ACCESS_FLUSH_GLOBAL);
    with("flush persistently", EVERYTHING | IBV_ACCESS_FLUSH_PERSISTENT);
    with("flush both ways", EVERYTHING | IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT);
}
