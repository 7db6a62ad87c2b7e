//! Calls of the C library in any order, with any arguments, on the simulated GPU.
//!
//! Whatever a program passes, a call answers 0 or a positive errno value, and bytes that were
//! written are read back. Pointers to the caller's own memory are valid or null: C promises that.

#![no_main]

use std::ffi::{c_int, c_void};
use std::ptr;

use arbitrary::Arbitrary;
use gdrapi::abi::{GPU_PAGE_SIZE, gdr_info_v1_t, gdr_info_v2_t, gdr_mh_t, gdr_t};
use libfuzzer_sys::fuzz_target;

const BUFFER: u64 = 1 << 20;
const HOST: usize = 8 << 10;
const MOST_OPEN: usize = 4;
const MOST_PINNED: usize = 16;

/// Which handle a call gets.
#[derive(Arbitrary, Debug)]
enum Which {
    /// One that was given out, live or stale.
    Known(u8),
    /// One that was made up.
    Invented(u64),
}

#[derive(Arbitrary, Debug)]
enum Call {
    Open,
    Close(Which),
    Pin {
        g: Which,
        offset: u32,
        size: u32,
        tokens: Option<(u64, u32)>,
    },
    PinV2 {
        g: Which,
        offset: u32,
        size: u32,
        flags: u8,
    },
    PinAnywhere {
        g: Which,
        address: u64,
        size: u64,
    },
    Unpin(Which, Which),
    Map {
        g: Which,
        handle: Which,
        size: u32,
    },
    MapV2 {
        g: Which,
        handle: Which,
        size: u32,
        flags: i8,
    },
    Unmap {
        g: Which,
        handle: Which,
        mapping: u8,
        size: u32,
    },
    CopyTo {
        handle: Which,
        mapping: u8,
        offset: i32,
        size: u16,
        byte: u8,
    },
    CopyFrom {
        handle: Which,
        mapping: u8,
        offset: i32,
        size: u16,
    },
    Info(Which, Which),
    Attribute {
        g: Which,
        attribute: u32,
        null: bool,
    },
    Versions(Which),
    TypeName(u32),
}

/// Everything that was ever given out, live or not.
#[derive(Default)]
struct Given {
    libraries: Vec<gdr_t>,
    handles: Vec<gdr_mh_t>,
    mappings: Vec<usize>,
}

impl Given {
    fn library(&self, which: &Which) -> gdr_t {
        match *which {
            Which::Known(at) => pick(&self.libraries, at).unwrap_or(ptr::null_mut()),
            Which::Invented(address) => ptr::without_provenance_mut(address as usize),
        }
    }

    fn handle(&self, which: &Which) -> gdr_mh_t {
        match *which {
            Which::Known(at) => pick(&self.handles, at).unwrap_or(gdr_mh_t { h: 0 }),
            Which::Invented(h) => gdr_mh_t { h },
        }
    }

    fn at(&self, mapping: u8, offset: i32) -> *mut c_void {
        let start = pick(&self.mappings, mapping).unwrap_or(0);
        ptr::without_provenance_mut(start.wrapping_add_signed(offset as isize))
    }
}

fn pick<T: Copy>(from: &[T], at: u8) -> Option<T> {
    from.get(usize::from(at) % from.len().max(1)).copied()
}

fn answered(errno: c_int) -> bool {
    assert!((0..4096).contains(&errno), "{errno} is not an errno value");
    errno == 0
}

/// A distance of up to a little more than the buffer, every other one a whole number of GPU pages:
/// calls that succeed lead further than calls that fail.
fn distance(raw: u32) -> u64 {
    let (raw, most) = (u64::from(raw), BUFFER + BUFFER / 4);
    if raw.is_multiple_of(2) {
        raw / 2 * GPU_PAGE_SIZE % most
    } else {
        raw / 2 % most
    }
}

fn buffer(offset: u32) -> u64 {
    gdrapi::SIMULATED_BUFFER.get() + distance(offset)
}

fn call(given: &mut Given, call: &Call) {
    match call {
        Call::Open => {
            if given.libraries.len() < MOST_OPEN {
                let g = gdrapi::gdr_open();
                assert!(!g.is_null(), "the simulation always opens");
                given.libraries.push(g);
            }
        }
        Call::Close(g) => {
            answered(gdrapi::gdr_close(given.library(g)));
        }
        Call::Pin {
            g,
            offset,
            size,
            tokens,
        } => {
            let (token, space) = tokens.unwrap_or_default();
            let (address, size) = (buffer(*offset), distance(*size) as usize);
            let g = given.library(g);
            // SAFETY: a place for the handle.
            pinned(given, |handle| unsafe {
                gdrapi::gdr_pin_buffer(g, address, size, token, space, handle)
            });
        }
        Call::PinV2 {
            g,
            offset,
            size,
            flags,
        } => {
            let (address, size) = (buffer(*offset), distance(*size) as usize);
            let g = given.library(g);
            // SAFETY: a place for the handle.
            pinned(given, |handle| unsafe {
                gdrapi::gdr_pin_buffer_v2(g, address, size, (*flags).into(), handle)
            });
        }
        Call::PinAnywhere { g, address, size } => {
            let g = given.library(g);
            // SAFETY: a place for the handle; the library checks the address.
            pinned(given, |handle| unsafe {
                gdrapi::gdr_pin_buffer_v2(g, *address, *size as usize, 0, handle)
            });
        }
        Call::Unpin(g, handle) => {
            answered(gdrapi::gdr_unpin_buffer(
                given.library(g),
                given.handle(handle),
            ));
        }
        Call::Map { g, handle, size } => {
            let (g, handle) = (given.library(g), given.handle(handle));
            // SAFETY: a place for the address.
            mapped(given, |va| unsafe {
                gdrapi::gdr_map(g, handle, va, distance(*size) as usize)
            });
        }
        Call::MapV2 {
            g,
            handle,
            size,
            flags,
        } => {
            let (g, handle) = (given.library(g), given.handle(handle));
            // SAFETY: a place for the address.
            mapped(given, |va| unsafe {
                gdrapi::gdr_map_v2(g, handle, va, distance(*size) as usize, (*flags).into())
            });
        }
        Call::Unmap {
            g,
            handle,
            mapping,
            size,
        } => {
            let (g, handle) = (given.library(g), given.handle(handle));
            answered(gdrapi::gdr_unmap(
                g,
                handle,
                given.at(*mapping, 0),
                distance(*size) as usize,
            ));
        }
        Call::CopyTo {
            handle,
            mapping,
            offset,
            size,
            byte,
        } => {
            let (handle, at) = (given.handle(handle), given.at(*mapping, *offset));
            let size = usize::from(*size) % HOST;
            let (bytes, mut back) = ([*byte; HOST], [!*byte; HOST]);
            // SAFETY: `bytes` is readable for `size` bytes; the library checks the rest.
            if answered(unsafe {
                gdrapi::gdr_copy_to_mapping(handle, at, bytes.as_ptr().cast(), size)
            }) {
                // SAFETY: `back` is writable for `size` bytes.
                let errno = unsafe {
                    gdrapi::gdr_copy_from_mapping(handle, back.as_mut_ptr().cast(), at, size)
                };
                assert!(answered(errno) && back[..size] == bytes[..size]);
            }
        }
        Call::CopyFrom {
            handle,
            mapping,
            offset,
            size,
        } => {
            let (handle, at) = (given.handle(handle), given.at(*mapping, *offset));
            let mut bytes = [0u8; HOST];
            // SAFETY: `bytes` is writable for this many bytes; the library checks the rest.
            answered(unsafe {
                gdrapi::gdr_copy_from_mapping(
                    handle,
                    bytes.as_mut_ptr().cast(),
                    at,
                    usize::from(*size) % HOST,
                )
            });
        }
        Call::Info(g, handle) => {
            let (g, handle) = (given.library(g), given.handle(handle));
            let (mut v1, mut v2) = (gdr_info_v1_t::default(), gdr_info_v2_t::default());
            let mut flag = 0;
            // SAFETY: places for the answers.
            unsafe {
                let old = answered(gdrapi::gdr_get_info(g, handle, &mut v1));
                let new = answered(gdrapi::gdr_get_info_v2(g, handle, &mut v2));
                assert_eq!((old, v1.va, v1.mapped_size), (new, v2.va, v2.mapped_size));
                answered(gdrapi::gdr_get_callback_flag(g, handle, &mut flag));
            }
        }
        Call::Attribute { g, attribute, null } => {
            let mut value = 0;
            let place = if *null {
                ptr::null_mut()
            } else {
                &raw mut value
            };
            // SAFETY: null, or a place for the answer.
            let errno = unsafe { gdrapi::gdr_get_attribute(given.library(g), *attribute, place) };
            assert!(!answered(errno) || !*null);
        }
        Call::Versions(g) => {
            let (mut major, mut minor) = (0, 0);
            // SAFETY: places for the answers.
            unsafe {
                gdrapi::gdr_runtime_get_version(&mut major, &mut minor);
                assert_eq!((major, minor), (2, 6));
                answered(gdrapi::gdr_driver_get_version(
                    given.library(g),
                    &mut major,
                    &mut minor,
                ));
            }
        }
        Call::TypeName(kind) => {
            let mut name = ptr::null();
            // SAFETY: a place for the answer.
            answered(unsafe { gdrapi::gdr_get_mapping_type_string(*kind, &mut name) });
        }
    }
}

fn pinned(given: &mut Given, pin: impl FnOnce(*mut gdr_mh_t) -> c_int) {
    if given.handles.len() >= MOST_PINNED {
        return;
    }
    let mut handle = gdr_mh_t { h: 0 };
    if answered(pin(&mut handle)) {
        assert_ne!(handle.h, 0, "0 means none");
        given.handles.push(handle);
    }
}

fn mapped(given: &mut Given, map: impl FnOnce(*mut *mut c_void) -> c_int) {
    let mut va = ptr::null_mut();
    if answered(map(&mut va)) {
        assert!(!va.is_null());
        given.mappings.push(va.addr());
    }
}

fuzz_target!(
    init: {
        // SAFETY: no other thread runs yet.
        unsafe {
            std::env::set_var("GDR_BACKEND", "sim");
            std::env::set_var("GDR_SIM_BYTES", BUFFER.to_string());
        }
    },
    |calls: Vec<Call>| {
        let mut given = Given::default();
        for each in &calls {
            call(&mut given, each);
        }
        for g in given.libraries {
            answered(gdrapi::gdr_close(g));
        }
    }
);
