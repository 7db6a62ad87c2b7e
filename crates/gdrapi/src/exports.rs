//! The exported functions.
//!
//! Each is the C function of the same name, documented in `gdrapi.h`, and returns 0 or a positive errno value.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;

use gdr_copy::{Bus, Caching, PinGranularity, PinOptions};
use gdr_cuda::DevicePtr;

use crate::abi::{
    GDR_API_MAJOR_VERSION, GDR_API_MINOR_VERSION, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE,
    GDR_ATTR_USE_PERSISTENT_MAPPING, GDR_ATTR_USING_DMA_BUF_MMAP, GDR_MAP_FLAG_DEFAULT,
    GDR_MAPPING_TYPE_CACHING, GDR_MAPPING_TYPE_DEVICE, GDR_MAPPING_TYPE_NONE, GDR_MAPPING_TYPE_WC,
    GDR_PIN_FLAG_DEFAULT, GDR_PIN_FLAG_FORCE_PCIE, INFO_MAPPED, INFO_WC_MAPPING, gdr_info_v1_t,
    gdr_info_v2_t, gdr_mh_t, gdr_t,
};
use crate::copy_error::{CopyError, Direction};
use crate::errno::Failure;
use crate::ffi_guard::{guarded, guarded_value};
use crate::mapping_table::{self, Destination, Source};
use crate::pin::{Description, requested_caching};
use crate::process::Process;
use crate::stack::Depth;

const NULL_OUTPUT: Failure = Failure::Argument("an output pointer is null");

/// Writes to an output of the caller.
///
/// # Safety
/// `output` is null or valid for writing a `T`.
unsafe fn write_output<T>(output: *mut T, value: T) -> Result<(), Failure> {
    if output.is_null() {
        return Err(NULL_OUTPUT);
    }
    // SAFETY: a non-null output is valid for writing, and C callers align it.
    unsafe { output.write(value) };
    Ok(())
}

fn refuse_null<T>(output: *mut T) -> Result<(), Failure> {
    if output.is_null() {
        Err(NULL_OUTPUT)
    } else {
        Ok(())
    }
}

/// Opens the library. Returns null and sets `errno` if no backend works.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_open() -> gdr_t {
    crate::log::install();
    guarded_value("gdr_open", Process::open).unwrap_or_else(|errno| {
        // SAFETY: the address of this thread's errno.
        unsafe { *libc::__errno_location() = errno };
        ptr::null_mut()
    })
}

/// Closes `g`, after unmapping and unpinning all its buffers.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_close(g: gdr_t) -> c_int {
    let here = Depth::here();
    guarded("gdr_close", || Process::current()?.close(g, here))
}

/// Pins GPU memory. The tokens are ignored; with a `gdrdrv` module before 2.5 they must be 0.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_pin_buffer(
    g: gdr_t,
    addr: c_ulong,
    size: usize,
    p2p_token: u64,
    va_space: u32,
    handle: *mut gdr_mh_t,
) -> c_int {
    guarded("gdr_pin_buffer", || {
        if (p2p_token, va_space) != (0, 0) {
            refuse_tokens(Process::current()?.library(g)?.context.attributes().module)?;
        }
        // SAFETY: the caller's promise about `handle`.
        unsafe { pin(g, addr, size, GDR_PIN_FLAG_DEFAULT, handle) }
    })
}

/// GDRCopy passes P2P tokens only to modules before 2.5, where they request a kind of pin that this library
/// does not support. Newer modules and all other backends have no tokens.
fn refuse_tokens(module: Option<(u16, u16)>) -> Result<(), Failure> {
    match module {
        Some(version) if version < (2, 5) => Err(Failure::Argument(
            "P2P tokens are not supported with a gdrdrv module before 2.5: pass 0, 0, or load a \
             newer module",
        )),
        _ => Ok(()),
    }
}

/// Pins GPU memory with flags.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_pin_buffer_v2(
    g: gdr_t,
    addr: c_ulong,
    size: usize,
    flags: u32,
    handle: *mut gdr_mh_t,
) -> c_int {
    // SAFETY: the caller's promise about `handle`.
    guarded("gdr_pin_buffer_v2", || unsafe {
        pin(g, addr, size, flags, handle)
    })
}

/// # Safety
/// `handle` is null or valid for writing.
unsafe fn pin(
    g: gdr_t,
    addr: c_ulong,
    size: usize,
    flags: u32,
    handle: *mut gdr_mh_t,
) -> Result<(), Failure> {
    refuse_null(handle)?;
    let bus = match flags {
        GDR_PIN_FLAG_DEFAULT => Bus::Default,
        GDR_PIN_FLAG_FORCE_PCIE => Bus::Pcie,
        _ => {
            return Err(Failure::Argument(
                "the pin flags are not one of GDR_PIN_FLAG_*",
            ));
        }
    };
    let process = Process::current()?;
    let library = process.library(g)?;
    // Like `gdrdrv`, check only whole GPU pages: callers that round to pages rely on it.
    let options = PinOptions::new()
        .with_bus(bus)
        .with_granularity(PinGranularity::GpuPages);
    let pinned = library
        .context
        .pin_with(DevicePtr::new(addr), size as u64, options)?;
    let h = process.add(g, &library, pinned)?;
    // SAFETY: the caller's promise.
    unsafe { write_output(handle, gdr_mh_t { h }) }
}

/// Unmaps and unpins.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unpin_buffer(g: gdr_t, handle: gdr_mh_t) -> c_int {
    let here = Depth::here();
    guarded("gdr_unpin_buffer", || {
        Process::current()?.unpin(g, handle.h, here)
    })
}

/// Returns in `flag` whether the memory was freed while it was pinned.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_callback_flag(
    g: gdr_t,
    handle: gdr_mh_t,
    flag: *mut c_int,
) -> c_int {
    guarded("gdr_get_callback_flag", || {
        let invalidated = Process::current()?.buffer(g, handle.h)?.invalidated()?;
        // SAFETY: the caller's promise.
        unsafe { write_output(flag, c_int::from(invalidated)) }
    })
}

fn describe(g: gdr_t, handle: gdr_mh_t) -> Result<gdr_info_v2_t, Failure> {
    let Description { pages, mapped } = Process::current()?.buffer(g, handle.h)?.describe()?;
    let mut bits = 0;
    if mapped.is_some() {
        bits |= INFO_MAPPED;
    }
    if mapped == Some(Caching::WriteCombined) {
        bits |= INFO_WC_MAPPING;
    }
    Ok(gdr_info_v2_t {
        va: pages.va.get(),
        mapped_size: pages.mapped_size,
        page_size: pages.page_size,
        tm_cycles: 0,
        cycles_per_ms: 0,
        bits,
        mapping_type: match mapped {
            None => GDR_MAPPING_TYPE_NONE,
            Some(Caching::WriteCombined) => GDR_MAPPING_TYPE_WC,
            Some(Caching::Cached) => GDR_MAPPING_TYPE_CACHING,
            Some(Caching::Device) => GDR_MAPPING_TYPE_DEVICE,
        },
    })
}

/// Returns information about a pin, in the 40-byte structure of versions before 2.4.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_info(
    g: gdr_t,
    handle: gdr_mh_t,
    info: *mut gdr_info_v1_t,
) -> c_int {
    guarded("gdr_get_info", || {
        let now = describe(g, handle)?;
        let old = gdr_info_v1_t {
            va: now.va,
            mapped_size: now.mapped_size,
            page_size: now.page_size,
            tm_cycles: now.tm_cycles,
            cycles_per_ms: now.cycles_per_ms,
            bits: now.bits,
        };
        // SAFETY: the caller's promise.
        unsafe { write_output(info, old) }
    })
}

/// Returns what is pinned.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_info_v2(
    g: gdr_t,
    handle: gdr_mh_t,
    info: *mut gdr_info_v2_t,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded("gdr_get_info_v2", || unsafe {
        write_output(info, describe(g, handle)?)
    })
}

/// Maps a pinned buffer.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_map(
    g: gdr_t,
    handle: gdr_mh_t,
    va: *mut *mut c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded("gdr_map", || unsafe {
        map(g, handle, va, size, GDR_MAP_FLAG_DEFAULT)
    })
}

/// Maps a pinned buffer with a requested mapping type.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_map_v2(
    g: gdr_t,
    handle: gdr_mh_t,
    ptr_va: *mut *mut c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded("gdr_map_v2", || unsafe {
        map(g, handle, ptr_va, size, flags)
    })
}

/// # Safety
/// `va` is null or valid for writing.
unsafe fn map(
    g: gdr_t,
    handle: gdr_mh_t,
    va: *mut *mut c_void,
    size: usize,
    flags: c_int,
) -> Result<(), Failure> {
    refuse_null(va)?;
    let caching = requested_caching(flags)?;
    let process = Process::current()?;
    let start = process
        .buffer(g, handle.h)?
        .map(process.mappings(), size, caching, |backend| {
            process.driver(backend)
        })?;
    // SAFETY: the caller's promise.
    unsafe { write_output(va, ptr::with_exposed_provenance_mut(start)) }
}

/// Unmaps. `va` is compared, not dereferenced.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unmap(g: gdr_t, handle: gdr_mh_t, va: *mut c_void, size: usize) -> c_int {
    let here = Depth::here();
    guarded("gdr_unmap", || {
        let process = Process::current()?;
        process
            .buffer(g, handle.h)?
            .unmap(process.mappings(), here, va.addr(), size)
    })
}

/// Copies to GPU memory.
///
/// The two copies do not use `guarded`: they neither panic nor contain a cancellation point.
///
/// # Safety
/// `h_ptr` is null or valid for reading `size` bytes that do not lie in the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_copy_to_mapping(
    handle: gdr_mh_t,
    map_d_ptr: *mut c_void,
    h_ptr: *const c_void,
    size: usize,
) -> c_int {
    let (address, host) = (map_d_ptr.addr(), Source(h_ptr.cast()));
    if (1..=16).contains(&size) {
        // SAFETY: the caller's promise.
        let is_stored = unsafe { mapping_table::store_few(handle.h, address, host, size) };
        if is_stored {
            return 0;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store_any(handle.h, address, host, size) }
}

/// # Safety
/// Same as [`gdr_copy_to_mapping`].
#[inline(never)]
unsafe fn store_any(handle: u64, address: usize, host: Source, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { mapping_table::copy(handle, address, host, size) } {
        Ok(()) => 0,
        Err(why) => refused(Direction::To, why),
    }
}

/// Copies from GPU memory.
///
/// # Safety
/// `h_ptr` is null or valid for writing `size` bytes that do not lie in the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_copy_from_mapping(
    handle: gdr_mh_t,
    h_ptr: *mut c_void,
    map_d_ptr: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe {
        mapping_table::copy(handle.h, map_d_ptr.addr(), Destination(h_ptr.cast()), size)
    } {
        Ok(()) => 0,
        Err(why) => refused(Direction::From, why),
    }
}

/// Neither allocates, takes a lock nor is a cancellation point, because signal handlers copy too and may have
/// interrupted `malloc`.
#[cold]
#[inline(never)]
fn refused(direction: Direction, why: CopyError) -> c_int {
    crate::log::error_from_a_copy(why.line(direction));
    why.errno()
}

/// Returns the version of this library. Null pointers are ignored.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: the caller's promise. A null pointer cannot be reported.
    let _ = unsafe { write_output(major, GDR_API_MAJOR_VERSION) };
    // SAFETY: as above.
    let _ = unsafe { write_output(minor, GDR_API_MINOR_VERSION) };
}

/// Returns the version of the `gdrdrv` module, or of this library with other backends, because callers fail without
/// one.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_driver_get_version(
    g: gdr_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    guarded("gdr_driver_get_version", || {
        refuse_null(major)?;
        refuse_null(minor)?;
        let module = Process::current()?.library(g)?.context.attributes().module;
        let (of_major, of_minor) = module.map_or(
            (GDR_API_MAJOR_VERSION, GDR_API_MINOR_VERSION),
            |(major, minor)| (c_int::from(major), c_int::from(minor)),
        );
        // SAFETY: the caller's promise.
        unsafe {
            write_output(major, of_major)?;
            write_output(minor, of_minor)
        }
    })
}

/// Returns an attribute of the backend.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_attribute(g: gdr_t, attr: c_uint, v: *mut c_int) -> c_int {
    guarded("gdr_get_attribute", || {
        // SAFETY: the caller's promise. 0 is for callers that ignore the returned errno.
        unsafe { write_output(v, 0)? };
        let attributes = Process::current()?.library(g)?.context.attributes();
        let yes = match attr {
            GDR_ATTR_USE_PERSISTENT_MAPPING => attributes.persistent,
            GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE => attributes.force_pcie,
            GDR_ATTR_USING_DMA_BUF_MMAP => attributes.dma_buf_mmap,
            _ => return Err(Failure::Argument("the attribute is unknown")),
        };
        // SAFETY: the caller's promise.
        unsafe { write_output(v, c_int::from(yes)) }
    })
}

/// Returns the name of a mapping type.
///
/// # Safety
/// Output pointers are null or valid for writing what they point to. Handles may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_get_mapping_type_string(
    mapping_type: c_uint,
    pstr: *mut *const c_char,
) -> c_int {
    guarded("gdr_get_mapping_type_string", || {
        let name: &'static CStr = match mapping_type {
            GDR_MAPPING_TYPE_NONE => c"None",
            GDR_MAPPING_TYPE_WC => c"Write Combining",
            GDR_MAPPING_TYPE_CACHING => c"Caching",
            GDR_MAPPING_TYPE_DEVICE => c"Device",
            _ => return Err(Failure::Argument("the mapping type is unknown")),
        };
        // SAFETY: the caller's promise.
        unsafe { write_output(pstr, name.as_ptr()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p2p_tokens_are_refused_with_modules_before_2_5_and_ignored_elsewhere() {
        assert!(refuse_tokens(None).is_ok());
        for (version, accepted) in [
            ((2, 0), false),
            ((2, 4), false),
            ((2, 5), true),
            ((3, 0), true),
        ] {
            assert_eq!(
                refuse_tokens(Some(version)).is_ok(),
                accepted,
                "{version:?}"
            );
        }
    }
}
