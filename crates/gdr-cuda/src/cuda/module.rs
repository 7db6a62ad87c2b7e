//! Launches the kernels.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::api::Opaque;
use super::{Cuda, check, stream_of};
use crate::device::Ordinal;
use crate::driver::RawStream;
use crate::error::Result;
use crate::kernel::{Direction, Launch, PTX, PUSH_PTX};

/// The number of threads of a block that streams through memory.
const THREADS: u32 = 256;
/// The number of blocks that fill a GPU of 132 multiprocessors with 8 each; kernels stride over the rest.
const MOST_BLOCKS: u32 = 132 * 8;
/// The number of threads of a block that copies, each 16 bytes at once.
const COPY_THREADS: u32 = 512;
/// The number of threads that push: one for each line of 4 KiB.
const PUSH_THREADS: u32 = 512;

/// The functions of the kernels on one GPU.
#[derive(Clone, Copy, Debug)]
struct Functions {
    fill: Opaque,
    verify_begin: Opaque,
    verify: Opaque,
    verify_end: Opaque,
    double: Opaque,
    sum64_begin: Opaque,
    sum64: Opaque,
    guarded_copy: Opaque,
    gather: Opaque,
    ping_pong: Opaque,
}

// SAFETY: handles into a module, which any thread may launch.
unsafe impl Send for Functions {}

/// The function of [`Launch::Push`] on one GPU.
#[derive(Clone, Copy, Debug)]
struct PushFunction(Opaque);

// SAFETY: a handle into a module, which any thread may launch.
unsafe impl Send for PushFunction {}

/// The kernels of every GPU that has launched one. They exist as long as their context.
#[derive(Debug)]
pub(super) struct Modules {
    by_device: Mutex<HashMap<Ordinal, Functions>>,
    push: Mutex<HashMap<Ordinal, PushFunction>>,
}

/// The size of a launch.
#[derive(Clone, Copy, Debug)]
struct Grid {
    blocks: u32,
    threads: u32,
}

impl Grid {
    const SINGLE: Self = Self {
        blocks: 1,
        threads: 1,
    };

    fn over(words: u64) -> Self {
        let wanted = words
            .div_ceil(u64::from(THREADS))
            .clamp(1, u64::from(MOST_BLOCKS));
        Self {
            blocks: wanted as u32,
            threads: THREADS,
        }
    }
}

impl Modules {
    pub(super) fn new() -> Self {
        Self {
            by_device: Mutex::default(),
            push: Mutex::default(),
        }
    }
}

/// Returns the address of a kernel parameter, from which `cuLaunchKernel` copies it.
fn parameter<T>(value: &T) -> *mut c_void {
    ptr::from_ref(value).cast_mut().cast()
}

impl Cuda {
    /// # Safety
    /// Same as [`crate::Driver::launch`].
    pub(super) unsafe fn launch_kernel(&self, stream: RawStream, launch: &Launch) -> Result<()> {
        let _current = self.enter_of(stream)?;
        let functions = || self.functions(stream.device);
        match *launch {
            Launch::Fill { dst, words, seed } => {
                let mut values = [parameter(&dst), parameter(&words), parameter(&seed)];
                // SAFETY: the parameters of `gdr_fill`; the caller's promise about `dst`.
                unsafe { self.run(functions()?.fill, Grid::over(words), stream, &mut values) }
            }
            Launch::Verify {
                src,
                words,
                seed,
                report,
            } => {
                let functions = functions()?;
                let mut begin = [parameter(&report)];
                let mut verify = [
                    parameter(&src),
                    parameter(&words),
                    parameter(&seed),
                    parameter(&report),
                ];
                let mut end = [parameter(&src), parameter(&seed), parameter(&report)];
                // SAFETY: the parameters of `gdr_verify_begin`, `gdr_verify` and `gdr_verify_end`; the caller's promise
                // about `src` and `report`.
                unsafe {
                    self.run(functions.verify_begin, Grid::SINGLE, stream, &mut begin)?;
                    self.run(functions.verify, Grid::over(words), stream, &mut verify)?;
                    self.run(functions.verify_end, Grid::SINGLE, stream, &mut end)
                }
            }
            Launch::Double { src, dst, words } => {
                let mut values = [parameter(&src), parameter(&dst), parameter(&words)];
                // SAFETY: the parameters of `gdr_double`; the caller's promise about both addresses.
                unsafe { self.run(functions()?.double, Grid::over(words), stream, &mut values) }
            }
            Launch::Sum64 { src, len, sum } => {
                let functions = functions()?;
                let mut begin = [parameter(&len), parameter(&sum)];
                let mut add = [parameter(&src), parameter(&len), parameter(&sum)];
                // SAFETY: the parameters of `gdr_sum64_begin` and `gdr_sum64`; the caller's promise about `src` and
                // `sum`.
                unsafe {
                    self.run(functions.sum64_begin, Grid::SINGLE, stream, &mut begin)?;
                    self.run(functions.sum64, Grid::over(len / 8), stream, &mut add)
                }
            }
            Launch::GuardedCopy {
                src,
                dst,
                len,
                guard,
                number,
                blocks,
            } => {
                let mut values = [
                    parameter(&src),
                    parameter(&dst),
                    parameter(&len),
                    parameter(&guard),
                    parameter(&number),
                ];
                let grid = Grid {
                    blocks,
                    threads: COPY_THREADS,
                };
                // SAFETY: the parameters of `gdr_guarded_copy`; the caller's promise about all addresses.
                unsafe { self.run(functions()?.guarded_copy, grid, stream, &mut values) }
            }
            Launch::Gather {
                table,
                blocks,
                dst,
                len: _,
            } => {
                let mut values = [parameter(&table), parameter(&dst)];
                let grid = Grid {
                    blocks,
                    threads: COPY_THREADS,
                };
                // SAFETY: the parameters of `gdr_gather`; the caller's promise about the table and all memory that it
                // names.
                unsafe { self.run(functions()?.gather, grid, stream, &mut values) }
            }
            Launch::PingPong {
                ping,
                pong,
                stop,
                iterations,
                data,
                data_words,
                direction,
                blocks,
                threads,
                barrier,
                mismatches,
            } => {
                let check = u32::from(direction == Direction::CpuToGpu);
                let mut values = [
                    parameter(&ping),
                    parameter(&pong),
                    parameter(&stop),
                    parameter(&data),
                    parameter(&data_words),
                    parameter(&barrier),
                    parameter(&mismatches),
                    parameter(&iterations),
                    parameter(&check),
                ];
                let grid = Grid { blocks, threads };
                // SAFETY: the parameters of `gdr_ping_pong`; the caller's promise about all addresses.
                unsafe { self.run(functions()?.ping_pong, grid, stream, &mut values) }
            }
            Launch::Push {
                base,
                len: _,
                request,
                lines,
                capacity: _,
                left,
                last,
                launch,
                idle_ns,
                life_ns,
            } => {
                let mut values = [
                    parameter(&base),
                    parameter(&request),
                    parameter(&lines),
                    parameter(&left),
                    parameter(&idle_ns),
                    parameter(&life_ns),
                    parameter(&last),
                    parameter(&launch),
                ];
                let grid = Grid {
                    blocks: 1,
                    threads: PUSH_THREADS,
                };
                let function = self.push_function(stream.device)?.0;
                // SAFETY: the parameters of `gdr_push`; the caller's promise about all addresses.
                unsafe { self.run(function, grid, stream, &mut values) }
            }
        }
    }

    /// # Safety
    /// `values` point to the parameters of `function`, in order and of their types; addresses among them are valid for
    /// the kernel's accesses.
    unsafe fn run(
        &self,
        function: Opaque,
        grid: Grid,
        stream: RawStream,
        values: &mut [*mut c_void],
    ) -> Result<()> {
        let (blocks, threads) = (grid.blocks, grid.threads);
        // SAFETY: a function of this device's module and a stream of the same device; the parameters are copied before
        // the call returns; the rest is the caller's promise.
        let status = unsafe {
            (self.api.launch_kernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream_of(stream),
                values.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", status)
    }

    /// Returns the kernels of a GPU whose primary context is current. Compiles them at their first use.
    fn functions(&self, device: Ordinal) -> Result<Functions> {
        let modules = &self.modules.by_device;
        let mut modules = modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(functions) = modules.get(&device) {
            return Ok(*functions);
        }
        let module = self.load_module(PTX)?;
        let find = |name| self.find_function(module, name);
        let functions = Functions {
            fill: find(c"gdr_fill")?,
            verify_begin: find(c"gdr_verify_begin")?,
            verify: find(c"gdr_verify")?,
            verify_end: find(c"gdr_verify_end")?,
            double: find(c"gdr_double")?,
            sum64_begin: find(c"gdr_sum64_begin")?,
            sum64: find(c"gdr_sum64")?,
            guarded_copy: find(c"gdr_guarded_copy")?,
            gather: find(c"gdr_gather")?,
            ping_pong: find(c"gdr_ping_pong")?,
        };
        modules.insert(device, functions);
        Ok(functions)
    }

    /// Like [`Cuda::functions`], for [`Launch::Push`].
    fn push_function(&self, device: Ordinal) -> Result<PushFunction> {
        let modules = &self.modules.push;
        let mut modules = modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = modules.get(&device) {
            return Ok(*function);
        }
        let module = self.load_module(PUSH_PTX)?;
        let function = PushFunction(self.find_function(module, c"gdr_push")?);
        modules.insert(device, function);
        Ok(function)
    }

    /// Compiles a module in the current context.
    fn load_module(&self, ptx: &'static str) -> Result<Opaque> {
        let mut module = ptr::null_mut();
        // SAFETY: a place for the result and PTX text that ends with a NUL.
        let status = unsafe { (self.api.module_load_data)(&mut module, ptx.as_ptr().cast()) };
        check("cuModuleLoadData", status)?;
        Ok(module)
    }

    fn find_function(&self, module: Opaque, name: &CStr) -> Result<Opaque> {
        let mut function = ptr::null_mut();
        let get = self.api.module_get_function;
        // SAFETY: a place for the result, a module from `load_module` and a NUL-terminated name.
        check("cuModuleGetFunction", unsafe {
            get(&mut function, module, name.as_ptr())
        })?;
        Ok(function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_covers_small_work_whole_and_strides_over_large_work() {
        assert_eq!(Grid::over(0).blocks, 1);
        assert_eq!(Grid::over(1).blocks, 1);
        assert_eq!(Grid::over(257).blocks, 2);
        assert_eq!(Grid::over(u64::MAX).blocks, MOST_BLOCKS);
    }

    #[test]
    fn the_kernels_are_text_with_one_nul_at_the_end() {
        for ptx in [PTX, PUSH_PTX] {
            let text = ptx.strip_suffix('\0').unwrap();
            assert!(text.is_ascii() && !text.contains('\0'));
        }
        assert!(PUSH_PTX.contains(".visible .entry gdr_push("));
        for name in [
            "fill",
            "verify_begin",
            "verify",
            "verify_end",
            "double",
            "sum64_begin",
            "sum64",
            "guarded_copy",
            "gather",
            "ping_pong",
        ] {
            assert_eq!(
                PTX.matches(&format!(".visible .entry gdr_{name}(")).count(),
                1,
                "{name}"
            );
        }
    }
}
