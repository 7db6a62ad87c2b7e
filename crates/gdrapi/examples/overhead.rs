//! Measures the cost of the C interface over the copy routines.
//!
//! ```text
//! GDR_BACKEND=sim cargo run --release -p gdrapi --example overhead
//! cargo run --release -p gdrapi --example overhead -- LIBRARY [DEVICE_ADDRESS_IN_HEX]
//! ```
//!
//! Copies of several sizes alternate between `gdr_copy_to_mapping` and `gdr_copy_from_mapping` of the shared library
//! LIBRARY, called as by a C program, and `gdr_copy::cpu` directly. If LIBRARY is omitted or `-`, the functions linked
//! into this program are called. The figures are medians over the turns. Without an address, memory is allocated from
//! the first GPU, or is the simulated buffer.

use std::error::Error;
use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use gdr_copy::cpu::{self, Caching, Routine};
use gdr_cuda::{Cuda, Gpu, MemoryKind, Ordinal};
use gdrapi::abi::{
    GDR_MAPPING_TYPE_CACHING, GDR_MAPPING_TYPE_DEVICE, GPU_PAGE_SIZE, gdr_info_v2_t, gdr_mh_t,
    gdr_t,
};

const TURNS: usize = 41;
const SIZES: [usize; 7] = [1, 8, 16, 64, 256, 1024, 4096];

type CopyTo = unsafe extern "C" fn(gdr_mh_t, *mut c_void, *const c_void, usize) -> c_int;
type CopyFrom = unsafe extern "C" fn(gdr_mh_t, *mut c_void, *const c_void, usize) -> c_int;

/// The functions under test.
struct Functions {
    open: unsafe extern "C" fn() -> gdr_t,
    pin: unsafe extern "C" fn(gdr_t, u64, usize, u64, u32, *mut gdr_mh_t) -> c_int,
    map: unsafe extern "C" fn(gdr_t, gdr_mh_t, *mut *mut c_void, usize) -> c_int,
    info: unsafe extern "C" fn(gdr_t, gdr_mh_t, *mut gdr_info_v2_t) -> c_int,
    close: unsafe extern "C" fn(gdr_t) -> c_int,
    copy_to: CopyTo,
    copy_from: CopyFrom,
}

extern "C" fn open() -> gdr_t {
    gdrapi::gdr_open()
}
extern "C" fn close(g: gdr_t) -> c_int {
    gdrapi::gdr_close(g)
}

impl Functions {
    fn linked() -> Self {
        Self {
            open,
            pin: gdrapi::gdr_pin_buffer,
            map: gdrapi::gdr_map,
            info: gdrapi::gdr_get_info_v2,
            close,
            copy_to: gdrapi::gdr_copy_to_mapping,
            copy_from: gdrapi::gdr_copy_from_mapping,
        }
    }

    fn load(path: &str) -> Result<Self, Box<dyn Error>> {
        let path_c = CString::new(path)?;
        // SAFETY: the user named this library to load, and the path is NUL-terminated.
        let library = unsafe { libc::dlopen(path_c.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(format!("{path} cannot be loaded").into());
        }
        let symbol = |name: &str| -> Result<*mut c_void, Box<dyn Error>> {
            let name_c = CString::new(name)?;
            // SAFETY: the library was loaded above, and the name is NUL-terminated.
            let symbol = unsafe { libc::dlsym(library, name_c.as_ptr()) };
            if symbol.is_null() {
                return Err(format!("{path} has no {name}").into());
            }
            Ok(symbol)
        };
        // SAFETY: the types are as declared in gdrapi.h.
        unsafe {
            Ok(Self {
                open: function(symbol("gdr_open")?),
                pin: function(symbol("gdr_pin_buffer")?),
                map: function(symbol("gdr_map")?),
                info: function(symbol("gdr_get_info_v2")?),
                close: function(symbol("gdr_close")?),
                copy_to: function(symbol("gdr_copy_to_mapping")?),
                copy_from: function(symbol("gdr_copy_from_mapping")?),
            })
        }
    }
}

/// # Safety
/// `F` is the type of the function at `symbol`.
unsafe fn function<F: Copy>(symbol: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: both types have the same size, and the caller guarantees the function's type.
    unsafe { std::mem::transmute_copy(&symbol) }
}

fn check(call: &str, answer: c_int) -> Result<(), Box<dyn Error>> {
    match answer {
        0 => Ok(()),
        errno => Err(format!("{call}: {}", std::io::Error::from_raw_os_error(errno)).into()),
    }
}

/// Returns the duration of one `work` in nanoseconds, measured over many.
fn time(mut work: impl FnMut()) -> f64 {
    let mut rounds = 16u32;
    loop {
        let start = Instant::now();
        for _ in 0..rounds {
            work();
        }
        let taken = start.elapsed();
        if taken.as_micros() >= 500 {
            return taken.as_secs_f64() * 1e9 / f64::from(rounds);
        }
        rounds *= 2;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let library = arguments.next().filter(|name| name != "-");
    let functions = match &library {
        Some(path) => Functions::load(path)?,
        None => Functions::linked(),
    };

    let simulated = std::env::var("GDR_BACKEND").is_ok_and(|name| name.eq_ignore_ascii_case("sim"));
    let mut memory = None;
    let address = match arguments.next() {
        Some(hex) => u64::from_str_radix(hex.trim_start_matches("0x"), 16)?,
        None if simulated => gdrapi::SIMULATED_BUFFER.get(),
        None => {
            let gpu = Gpu::open(Cuda::load()?, Ordinal(0))?;
            let buffer = gpu.allocate(MemoryKind::Plain, 4 << 20)?;
            memory.insert(buffer).ptr().get()
        }
    };

    let size = GPU_PAGE_SIZE as usize;
    let mut handle = gdr_mh_t::default();
    let mut va = std::ptr::null_mut();
    let mut info = gdr_info_v2_t::default();
    // SAFETY: the outputs are valid, and the functions check everything else.
    let g = unsafe {
        let g = (functions.open)();
        if g.is_null() {
            return Err("gdr_open failed; GDRCOPY_ENABLE_LOGGING=1 says why".into());
        }
        check(
            "gdr_pin_buffer",
            (functions.pin)(g, address, size, 0, 0, &mut handle),
        )?;
        check("gdr_map", (functions.map)(g, handle, &mut va, size))?;
        check("gdr_get_info_v2", (functions.info)(g, handle, &mut info))?;
        g
    };
    let caching = match info.mapping_type {
        GDR_MAPPING_TYPE_CACHING => Caching::Cached,
        GDR_MAPPING_TYPE_DEVICE => Caching::Device,
        _ => Caching::WriteCombined,
    };
    let routine = Routine::best();
    println!(
        "{}, routine {}, {} mapping{}",
        library.as_deref().unwrap_or("linked functions"),
        routine.name(),
        caching.name(),
        if simulated { ", simulated" } else { "" }
    );
    // A refused call would be measured as a fast one.
    // SAFETY: 8 bytes on both sides.
    unsafe {
        let mut word = 0u64.to_ne_bytes();
        check(
            "gdr_copy_to_mapping",
            (functions.copy_to)(handle, va, word.as_ptr().cast(), 8),
        )?;
        check(
            "gdr_copy_from_mapping",
            (functions.copy_from)(handle, word.as_mut_ptr().cast(), va, 8),
        )?;
    }
    println!(
        "{:>6}  {:>9} {:>9} {:>7}  {:>9} {:>9} {:>7}",
        "bytes", "to, ns", "routine", "over", "from, ns", "routine", "over"
    );

    let mut host = vec![0x5au8; 4096];
    for bytes in SIZES {
        let mut figures = [const { Vec::new() }; 4];
        let (at, host) = (va.cast::<u8>(), host.as_mut_ptr());
        for _ in 0..TURNS {
            // SAFETY: `bytes` does not exceed the mapping or the host buffer.
            unsafe {
                figures[0].push(time(|| {
                    black_box((functions.copy_to)(
                        handle,
                        black_box(va),
                        host.cast(),
                        black_box(bytes),
                    ));
                }));
                figures[1].push(time(|| {
                    cpu::copy_to(routine, caching, black_box(at), host, black_box(bytes));
                }));
                figures[2].push(time(|| {
                    black_box((functions.copy_from)(
                        handle,
                        host.cast(),
                        black_box(va),
                        black_box(bytes),
                    ));
                }));
                figures[3].push(time(|| {
                    cpu::copy_from(routine, caching, host, black_box(at), black_box(bytes));
                }));
            }
        }
        let [to, bare_to, from, bare_from] = figures.map(median);
        println!(
            "{bytes:>6}  {to:>9.1} {bare_to:>9.1} {:>7.1}  {from:>9.1} {bare_from:>9.1} {:>7.1}",
            to - bare_to,
            from - bare_from
        );
    }
    // SAFETY: `g` is open.
    check("gdr_close", unsafe { (functions.close)(g) })
}
