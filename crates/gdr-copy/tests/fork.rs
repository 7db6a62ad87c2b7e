//! A forked child does not inherit its parent's mappings. In a test binary of its own, because it forks.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forked::{check, in_child, refused};
use gdr_copy::{BackendKind, Context, Flag, Mapping, Pinned};
use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};

const LEN: u64 = 256 << 10;

struct Parent {
    context: Context,
    pinned: Pinned,
    mapping: Mapping,
    buffer: DeviceBuffer,
}

impl Parent {
    fn new() -> Self {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, LEN).unwrap();
        let context = Context::builder()
            .simulated(driver)
            .backend(BackendKind::Sim)
            .open()
            .unwrap();
        let pinned = context.pin(buffer.ptr(), LEN).unwrap();
        let mapping = pinned.map().unwrap();
        mapping.write_at(0, b"the parent's").unwrap();
        Self {
            context,
            pinned,
            mapping,
            buffer,
        }
    }

    /// Returns whether the mapping still maps the memory of the buffer.
    fn is_whole(&self) -> bool {
        let mut seen = [0; 12];
        self.mapping.write_at(LEN - 12, b"the parent's").unwrap();
        self.buffer.read(LEN - 12, &mut seen).unwrap();
        &seen == b"the parent's"
    }
}

/// Serializes the tests: if another thread holds a lock of the standard library at a fork, such as the panic hook's,
/// the child can never take it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether anything is mapped at an address.
fn is_mapped(at: *mut u8) -> bool {
    let page = at.map_addr(|address| address & !(rustix::param::page_size() - 1));
    let mut resident = 0;
    // SAFETY: mincore(2) reads and writes no byte of the page.
    unsafe { libc::mincore(page.cast(), 1, &mut resident) == 0 }
}

#[test]
fn a_child_can_neither_copy_nor_map_nor_pin() {
    let _alone = alone();
    let parent = Parent::new();
    let Parent {
        context,
        pinned,
        mapping,
        buffer,
    } = &parent;
    let slice = mapping.slice(64, 64).unwrap();
    in_child(|| {
        let mut bytes = [0; 16];
        refused(mapping.write_at(0, &bytes), "write_at")?;
        refused(mapping.write_at_unfenced(0, &bytes), "write_at_unfenced")?;
        refused(mapping.read_at(0, &mut bytes), "read_at")?;
        refused(mapping.read_at_unfenced(0, &mut bytes), "read_at_unfenced")?;
        refused(slice.write_at(0, &bytes), "write_at of a slice")?;
        refused(slice.read_at(0, &mut bytes), "read_at of a slice")?;
        refused(mapping.flag::<u32>(0), "flag")?;
        refused(pinned.map(), "map")?;
        refused(pinned.invalidated(), "invalidated")?;
        refused(context.pin(buffer.ptr(), LEN), "pin")?;
        check(!context.origin().is_current(), "the context's process")
    });
    assert!(parent.is_whole());
}

#[test]
fn a_flag_made_before_the_fork_panics_in_the_child() {
    let _alone = alone();
    let parent = Parent::new();
    let flag: Flag<'_, u32> = parent.mapping.flag(0).unwrap();
    flag.store(7);
    let panics = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
    in_child(|| {
        // Suppresses the message of the panic.
        std::panic::set_hook(Box::new(|_| {}));
        check(panics(&|| flag.store(8)), "store")?;
        check(panics(&|| _ = flag.load()), "load")?;
        check(panics(&|| _ = flag.load_acquire()), "load_acquire")
    });
    assert_eq!(flag.load(), 7);
}

#[test]
fn a_child_inherits_no_mapping_and_its_drops_do_not_unmap_those_of_the_parent() {
    let _alone = alone();
    let parent = Parent::new();
    let (start, len) = parent.mapping.window();
    let (first, last) = (start, start.wrapping_add(len as usize - 1));
    assert!(is_mapped(first) && is_mapped(last));
    let parent = std::cell::Cell::new(Some(parent));
    in_child(|| {
        let inherited = [is_mapped(first), is_mapped(last)];
        // The child may map other memory at the address.
        let own = own_page(start);
        drop(
            parent
                .take()
                .map(|parent| (parent.mapping, parent.pinned, parent.context)),
        );
        check(inherited == [false; 2], "the mapping was inherited")?;
        check(own && is_mapped(start), "the child's own page is gone")
    });
    assert!(is_mapped(first) && is_mapped(last));
    assert!(parent.take().is_some_and(|parent| parent.is_whole()));
}

/// Maps a new page at an address where nothing is mapped.
fn own_page(at: *mut u8) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let size = rustix::param::page_size();
    // SAFETY: maps only where nothing is mapped.
    let mapped = unsafe { libc::mmap(at.cast(), size, libc::PROT_READ, flags, -1, 0) };
    mapped == at.cast()
}

#[test]
fn a_child_opens_a_context_of_its_own() {
    let _alone = alone();
    let _parent = Parent::new();
    in_child(|| check(Parent::new().is_whole(), "a mapping of its own"));
}
