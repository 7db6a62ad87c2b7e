//! The entries of a loaded library's global offset table.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Relocation types whose entry holds a function's address (System V psABI, x86-64 and AArch64).
#[cfg(target_arch = "x86_64")]
const FUNCTION_RELOCATIONS: [u32; 2] = [6, 7]; // R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT
#[cfg(target_arch = "aarch64")]
const FUNCTION_RELOCATIONS: [u32; 2] = [1025, 1026]; // R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FUNCTION_RELOCATIONS: [u32; 0] = [];

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// An ELF `Dyn` entry.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dyn {
    tag: i64,
    value: u64,
}

/// The entries through which one library calls one function.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<*mut c_void>,
    /// The part that the loader made read-only after relocation, if any.
    read_only: Range<usize>,
}

// SAFETY: the addresses of entries in a library that stays loaded; they are written only under
// the caller's lock and only by atomic exchanges.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

/// A library as the loader lists it.
#[derive(Default)]
struct Object {
    base: usize,
    dynamic: Option<*const Dyn>,
    read_only: Range<usize>,
}

struct Search {
    inside: usize,
    found: Option<Object>,
}

/// `dl_iterate_phdr` callback: stops at the library that holds the address sought.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, and `data` is the `Search` of `Slots::find`,
    // which waits for this walk.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader's own table of `dlpi_phnum` program headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.wrapping_add(header.p_memsz as usize)
    };
    let holds = headers
        .iter()
        .any(|header| header.p_type == libc::PT_LOAD && range(header).contains(&search.inside));
    if !holds {
        return 0;
    }
    let mut object = Object {
        base,
        ..Object::default()
    };
    for header in headers {
        match header.p_type {
            libc::PT_DYNAMIC => object.dynamic = Some(range(header).start as *const Dyn),
            libc::PT_GNU_RELRO => object.read_only = range(header),
            _ => {}
        }
    }
    search.found = Some(object);
    1
}

impl Slots {
    /// Finds the entries for `function` in the library that holds the address `inside`.
    pub(super) fn find(inside: *const c_void, function: &CStr) -> Result<Self, String> {
        let mut search = Search {
            inside: inside.addr(),
            found: None,
        };
        // SAFETY: `visit` follows the callback's contract and `search` outlives the walk.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        let object = search
            .found
            .ok_or("the loader does not list the driver library")?;
        let dynamic = object
            .dynamic
            .ok_or("the driver library has no dynamic section")?;

        let mut tables = [0u64; 24];
        for i in 0.. {
            // SAFETY: the dynamic section ends with a DT_NULL entry, and the library stays
            // loaded (gdr-cuda never unloads it).
            let entry = unsafe { *dynamic.add(i) };
            match usize::try_from(entry.tag) {
                Ok(0) => break,
                Ok(tag) if tag < tables.len() => tables[tag] = entry.value,
                _ => {}
            }
        }
        // glibc leaves addresses here, musl and the file itself offsets.
        let address = |tag: i64| {
            let value = tables[tag as usize] as usize;
            if value != 0 && value < object.base {
                value + object.base
            } else {
                value
            }
        };
        let (symbols, strings) = (address(DT_SYMTAB), address(DT_STRTAB));
        if symbols == 0 || strings == 0 {
            return Err("the driver library has no symbol table".to_owned());
        }
        let mut slots = Vec::new();
        for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
            let count = tables[size as usize] as usize / size_of::<libc::Elf64_Rela>();
            let table = address(table) as *const libc::Elf64_Rela;
            for i in 0..if table.is_null() { 0 } else { count } {
                // SAFETY: the loader relocated the library by this very table of `count` entries.
                let entry = unsafe { table.add(i).read_unaligned() };
                let (kind, symbol) = (entry.r_info as u32, (entry.r_info >> 32) as usize);
                if !FUNCTION_RELOCATIONS.contains(&kind) {
                    continue;
                }
                // SAFETY: a relocation's symbol index lies in the symbol table, and the symbol's
                // name in the string table, where names end with a zero byte.
                let name = unsafe {
                    let symbol = (symbols as *const libc::Elf64_Sym).add(symbol);
                    CStr::from_ptr((strings + (*symbol).st_name as usize) as *const _)
                };
                if name == function {
                    slots.push((object.base + entry.r_offset as usize) as *mut c_void);
                }
            }
        }
        if slots.is_empty() {
            let function = function.to_string_lossy();
            return Err(format!(
                "the driver library does not call {function} by its table"
            ));
        }
        Ok(Self {
            slots,
            read_only: object.read_only,
        })
    }

    /// Leads the entries to `target` until the guard is dropped.
    pub(super) fn redirect(&self, target: *const c_void) -> Result<Redirected<'_>, String> {
        let mut redirected = Redirected {
            slots: self,
            before: Vec::new(),
        };
        for &slot in &self.slots {
            let before = self.write(slot, target.cast_mut())?;
            redirected.before.push((slot, before));
        }
        Ok(redirected)
    }

    fn write(&self, slot: *mut c_void, value: *mut c_void) -> Result<*mut c_void, String> {
        let sealed = self.read_only.contains(&slot.addr());
        if sealed {
            self.protect(slot, libc::PROT_READ | libc::PROT_WRITE)?;
        }
        // SAFETY: the entry is an aligned pointer in the library's writable data (made so above
        // where the loader had sealed it) that other threads only ever read whole.
        let before = unsafe { AtomicPtr::from_ptr(slot.cast()) }.swap(value, Ordering::AcqRel);
        if sealed {
            self.protect(slot, libc::PROT_READ)?;
        }
        Ok(before)
    }

    fn protect(&self, slot: *mut c_void, protection: c_int) -> Result<(), String> {
        let page = rustix::param::page_size();
        let start = slot.addr() & !(page - 1);
        // SAFETY: changes the protection of the page that holds the entry, never taking away
        // reading; the entry does not cross it, being aligned.
        if unsafe { libc::mprotect(start as *mut c_void, page, protection) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        Err(format!(
            "the driver library's table cannot be unsealed: {error}"
        ))
    }
}

/// Entries that lead elsewhere; restored on drop.
#[must_use]
pub(super) struct Redirected<'slots> {
    slots: &'slots Slots,
    before: Vec<(*mut c_void, *mut c_void)>,
}

impl Drop for Redirected<'_> {
    fn drop(&mut self) {
        for &(slot, before) in &self.before {
            if let Err(problem) = self.slots.write(slot, before) {
                // The entry still leads to code that passes every call on.
                tracing::error!("{problem}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn forty_two() -> libc::pid_t {
        42
    }

    #[test]
    fn a_call_is_redirected_and_restored_also_where_the_loader_sealed_the_table() {
        // Rust links test programs with RELRO and immediate binding, so this entry is sealed.
        let inside = forty_two as *const c_void;
        // SAFETY: no preconditions.
        let real = unsafe { libc::getppid() };
        let slots = Slots::find(inside, c"getppid").unwrap();
        assert!(
            slots
                .slots
                .iter()
                .all(|slot| slots.read_only.contains(&slot.addr()))
        );
        {
            let _redirected = slots.redirect(forty_two as *const c_void).unwrap();
            // SAFETY: no preconditions; the stand-in has the same signature.
            assert_eq!(unsafe { libc::getppid() }, 42);
        }
        // SAFETY: no preconditions.
        assert_eq!(unsafe { libc::getppid() }, real);
    }

    #[test]
    fn a_function_that_is_not_called_has_no_entry() {
        let inside = forty_two as *const c_void;
        let error = Slots::find(inside, c"no_such_function").unwrap_err();
        assert!(error.contains("does not call no_such_function"), "{error}");
        let error = Slots::find(std::ptr::null(), c"ioctl").unwrap_err();
        assert!(error.contains("does not list"), "{error}");
    }
}
