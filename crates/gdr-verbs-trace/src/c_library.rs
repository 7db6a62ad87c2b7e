//! Looks up functions of the loaded C library in its symbol table.
//!
//! The layouts come from elf.h and link.h.

use std::ffi::{CStr, c_void};
use std::ops::ControlFlow;
use std::ptr;

use gdr_process::visit_loaded;

const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// `Elf64_Dyn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// `Elf64_Sym`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Returns the address of a function; null if the C library does not have it.
pub(crate) fn function(name: &CStr) -> *mut c_void {
    let mut found = ptr::null_mut();
    visit_loaded(&mut |object| {
        if object.dlpi_name.is_null() {
            return ControlFlow::Continue(());
        }
        // SAFETY: the loader provides the object's name as a C string.
        let path = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        // Before glibc 2.34, the functions were in libdl.
        if !file.starts_with(b"libc.so.") && !file.starts_with(b"libdl.so.") {
            return ControlFlow::Continue(());
        }
        // SAFETY: the loader has loaded this object, and keeps it for the duration of this call.
        found = unsafe { symbol(object, name) };
        match found.is_null() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    found
}

/// # Safety
/// The object is loaded.
unsafe fn symbol(info: &libc::dl_phdr_info, name: &CStr) -> *mut c_void {
    let base = info.dlpi_addr as usize;
    let at = |address: u64| ptr::with_exposed_provenance_mut::<u8>(address as usize);
    let headers = (0..usize::from(info.dlpi_phnum)).map(|number| {
        // SAFETY: the object has `dlpi_phnum` program headers.
        unsafe { &*info.dlpi_phdr.add(number) }
    });
    let Some(header) = headers.into_iter().find(|it| it.p_type == PT_DYNAMIC) else {
        return ptr::null_mut();
    };
    let mut tables = [ptr::null_mut::<u8>(); 3];
    let mut entry = at(base as u64 + header.p_vaddr).cast::<Dynamic>();
    loop {
        // SAFETY: the dynamic section ends with a tag of 0, where the loop stops.
        let Dynamic { tag, value } = unsafe { entry.read() };
        let table = match tag {
            0 => break,
            DT_STRTAB => 0,
            DT_SYMTAB => 1,
            DT_GNU_HASH => 2,
            _ => 3,
        };
        if let Some(place) = tables.get_mut(table) {
            // The loader replaces these offsets by addresses, except in some C libraries.
            let offset = if (value as usize) < base { base } else { 0 };
            *place = at(value + offset as u64);
        }
        // SAFETY: this was not the last entry.
        entry = unsafe { entry.add(1) };
    }
    let [strings, symbols, hashes] = tables;
    if tables.contains(&ptr::null_mut()) {
        return ptr::null_mut();
    }
    // SAFETY: these are tables of a loaded object, which the loader itself reads.
    unsafe { search(strings, symbols.cast(), hashes.cast(), name) }
        .map_or(ptr::null_mut(), |value| at(base as u64 + value).cast())
}

/// Returns the value of a symbol.
///
/// # Safety
/// The tables belong to a loaded object.
unsafe fn search(
    strings: *const u8,
    symbols: *const Symbol,
    hashes: *const u32,
    name: &CStr,
) -> Option<u64> {
    let hash = name.to_bytes().iter().fold(5381_u32, |hash, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    });
    // SAFETY: the table begins with its header: buckets, first symbol, words of the Bloom filter, its shift.
    let [buckets, first, filter, _] = unsafe { hashes.cast::<[u32; 4]>().read() };
    // SAFETY: the filter consists of 8-byte words, and the buckets follow it.
    let bucket_table = unsafe { hashes.add(4 + 2 * filter as usize) };
    // SAFETY: the chains follow the buckets.
    let chains = unsafe { bucket_table.add(buckets as usize) };
    // SAFETY: the index is less than the number of buckets.
    let mut at = unsafe {
        bucket_table
            .add((hash.checked_rem(buckets)?) as usize)
            .read()
    };
    loop {
        // A bucket without symbols has the number 0.
        let chained = at.checked_sub(first)?;
        // SAFETY: every symbol from the first one on has a hash.
        let found = unsafe { chains.add(chained as usize).read() };
        // SAFETY: the chain contains only indices of the symbol table.
        let symbol = unsafe { symbols.add(at as usize).read() };
        // The lowest bit of a hash marks the end of the chain.
        if found | 1 == hash | 1 && symbol.section != 0 {
            // SAFETY: a symbol's name is an offset into the string table.
            let text = unsafe { CStr::from_ptr(strings.add(symbol.name as usize).cast()) };
            if text == name {
                return Some(symbol.value);
            }
        }
        if found & 1 != 0 {
            return None;
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use super::*;

    #[test]
    fn functions_of_the_c_library_are_found_by_name() {
        let getpid = function(c"getpid");
        assert!(!getpid.is_null());
        // SAFETY: `getpid` has this type.
        let getpid: extern "C" fn() -> c_int = unsafe { std::mem::transmute(getpid) };
        assert_eq!(getpid() as u32, std::process::id());
        for name in [c"dlsym", c"dlvsym"] {
            assert!(!function(name).is_null());
        }
        assert!(function(c"no_such_function_of_c").is_null());
    }
}
