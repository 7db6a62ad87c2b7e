//! The entries of a loaded library's global offset table.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::error::HookError;

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
    /// The addresses of the library's segments.
    library: Range<usize>,
    /// The pages that the loader made read-only after relocation, if any.
    sealed: Range<usize>,
    protect: Protect,
}

/// Changes the protection of whole pages: `mprotect`, or a test's function.
type Protect = fn(Range<usize>, c_int) -> io::Result<()>;

/// Changes the protection of `pages`, which lie in the sealed part of a loaded library.
fn mprotect(pages: Range<usize>, protection: c_int) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: the pages hold a table that the loader wrote and made read-only. They stay readable, and lose write
    // access only if the loader had removed it.
    if unsafe { libc::mprotect(start, pages.len(), protection) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

// SAFETY: the addresses are of entries in a library that stays loaded. They are read and written as atomics; other
// writers (the loader's lazy binding, hooks of other libraries) also store whole aligned pointers.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

/// A library as the loader lists it.
#[derive(Default)]
struct Object {
    base: usize,
    dynamic: Option<*const Dyn>,
    loaded: Range<usize>,
    /// The RELRO segment of the program header, not in whole pages.
    relro: Range<usize>,
}

/// Returns the pages that the loader seals for a RELRO segment: glibc and musl round both ends down, so a page that
/// holds writable data after the segment stays writable.
fn sealed_pages(relro: Range<usize>, page: usize) -> Range<usize> {
    let down = |address: usize| address & !(page - 1);
    down(relro.start)..down(relro.end)
}

struct Search {
    inside: usize,
    found: Option<Object>,
}

/// `dl_iterate_phdr` callback: stops at the library that contains the address.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, and `data` is the `Search` of `Slots::find`, which outlives the
    // walk.
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
            libc::PT_GNU_RELRO => object.relro = range(header),
            libc::PT_LOAD => {
                let (segment, loaded) = (range(header), &mut object.loaded);
                *loaded = match loaded.end {
                    0 => segment,
                    end => loaded.start.min(segment.start)..end.max(segment.end),
                };
            }
            _ => {}
        }
    }
    // The result below, which is not 0, ends the walk.
    search.found = Some(object);
    1
}

impl Slots {
    /// Finds the entries for `function` in the library that holds the address `inside`.
    pub(super) fn find(inside: *const c_void, function: &CStr) -> Result<Self, HookError> {
        let mut search = Search {
            inside: inside.addr(),
            found: None,
        };
        // SAFETY: `visit` follows the callback's contract and `search` outlives the walk.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        let object = search.found.ok_or(HookError::NotLoaded)?;
        let dynamic = object
            .dynamic
            .ok_or(HookError::NoTable("dynamic section"))?;

        let mut tables = [0u64; 24];
        for i in 0.. {
            // SAFETY: the dynamic section ends with a DT_NULL entry, and the library stays loaded (gdr-cuda never
            // unloads it).
            let entry = unsafe { *dynamic.add(i) };
            match usize::try_from(entry.tag) {
                Ok(0) => break,
                Ok(tag) if tag < tables.len() => tables[tag] = entry.value,
                _ => {}
            }
        }
        // glibc stores addresses here; musl and the file itself have offsets.
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
            return Err(HookError::NoTable("symbol table"));
        }
        let mut slots = Vec::new();
        // A library that is linked without a procedure linkage table has its entries in the second table.
        for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
            let count = tables[size as usize] as usize / size_of::<libc::Elf64_Rela>();
            let table = address(table) as *const libc::Elf64_Rela;
            for i in 0..if table.is_null() { 0 } else { count } {
                // SAFETY: the loader relocated the library with this table of `count` entries.
                let entry = unsafe { table.add(i).read_unaligned() };
                let (kind, symbol) = (entry.r_info as u32, (entry.r_info >> 32) as usize);
                if !FUNCTION_RELOCATIONS.contains(&kind) {
                    continue;
                }
                // SAFETY: a relocation's symbol index lies in the symbol table, and the symbol's name in the string
                // table, where names end with a zero byte.
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
            let function = function.to_string_lossy().into_owned();
            return Err(HookError::NoEntry(function));
        }
        Ok(Self {
            slots,
            library: object.loaded,
            sealed: sealed_pages(object.relro, rustix::param::page_size()),
            protect: mprotect,
        })
    }

    /// Redirects every entry to the hook that `detour_for` returns for its current target, until the returned value is
    /// dropped. An entry that already points to that hook is not written.
    pub(super) fn redirect(
        &self,
        detour_for: impl Fn(Target) -> Result<Detour, HookError>,
    ) -> Result<Redirected<'_>, HookError> {
        let mut redirected = Redirected {
            slots: self,
            detours: Vec::new(),
        };
        for &slot in &self.slots {
            // Other code may change the entry between the load and the exchange.
            let mut tries = 0;
            loop {
                let current = self.entry(slot).load(Ordering::Acquire);
                let detour = detour_for(Target {
                    function: current,
                    unbound: self.library.contains(&current.addr()),
                })?;
                if current == detour.hook {
                    redirected.detours.push((slot, detour));
                    break;
                }
                let unsealed = self.unseal(slot)?;
                if self.exchange(slot, current, detour.hook) {
                    // From here on the entry is restored, even if sealing fails.
                    redirected.detours.push((slot, detour));
                    unsealed.seal()?;
                    break;
                }
                unsealed.seal()?;
                tries += 1;
                if tries == TRIES {
                    return Err(HookError::Contended);
                }
            }
        }
        Ok(redirected)
    }

    fn entry(&self, slot: *mut c_void) -> &AtomicPtr<c_void> {
        // SAFETY: an aligned pointer in the data of a library that stays loaded. All code reads and writes it as one
        // word.
        unsafe { AtomicPtr::from_ptr(slot.cast()) }
    }

    /// Replaces `current` by `value` in a writable entry, unless the entry has changed.
    fn exchange(&self, slot: *mut c_void, current: *mut c_void, value: *mut c_void) -> bool {
        self.entry(slot)
            .compare_exchange(current, value, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Makes the entry writable if the loader sealed it.
    fn unseal(&self, slot: *mut c_void) -> Result<Unsealed, HookError> {
        let mut unsealed = Unsealed {
            pages: None,
            protect: self.protect,
        };
        if self.sealed.contains(&slot.addr()) {
            // The entry is aligned, so it does not cross a page, and the sealed part is whole pages.
            let page = rustix::param::page_size();
            let start = slot.addr() & !(page - 1);
            let pages = start..start + page;
            (self.protect)(pages.clone(), libc::PROT_READ | libc::PROT_WRITE)
                .map_err(HookError::Unseal)?;
            unsealed.pages = Some(pages);
        }
        Ok(unsealed)
    }
}

/// The maximum number of attempts to exchange an entry that other code keeps changing.
const TRIES: usize = 100;

/// The current target of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) function: *mut c_void,
    /// Whether the target is inside the library itself: code that binds the entry at its first call and then overwrites
    /// it (lazy binding).
    pub(super) unbound: bool,
}

/// A hook for an entry, and the function to restore afterwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detour {
    pub(super) hook: *mut c_void,
    pub(super) before: *mut c_void,
}

/// A page of a table that is writable until it is sealed again.
#[must_use]
struct Unsealed {
    pages: Option<Range<usize>>,
    protect: Protect,
}

impl Unsealed {
    fn seal(self) -> Result<(), HookError> {
        let Some(pages) = self.pages else {
            return Ok(());
        };
        (self.protect)(pages, libc::PROT_READ).map_err(HookError::Seal)
    }
}

/// Redirected entries, restored on drop. An entry that other code has changed in the meantime is left unchanged.
#[must_use]
pub(super) struct Redirected<'slots> {
    slots: &'slots Slots,
    detours: Vec<(*mut c_void, Detour)>,
}

impl Drop for Redirected<'_> {
    fn drop(&mut self) {
        for &(slot, Detour { hook, before }) in self.detours.iter().rev() {
            let restored = self.slots.unseal(slot).and_then(|unsealed| {
                if !self.slots.exchange(slot, hook, before) {
                    tracing::debug!("another library has hooked the driver library's table");
                }
                unsealed.seal()
            });
            if let Err(problem) = restored {
                // An entry that still points to a hook works, because the hook passes every call on.
                tracing::error!("{problem}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    extern "C" fn forty_two() -> libc::pid_t {
        42
    }

    extern "C" fn forty_three() -> libc::pid_t {
        43
    }

    /// Serializes the tests that change an entry of this program's own table.
    static ENTRY: Mutex<()> = Mutex::new(());

    fn getppid() -> libc::pid_t {
        // SAFETY: no preconditions; the stand-ins have the same signature.
        unsafe { libc::getppid() }
    }

    fn slots() -> Slots {
        Slots::find(forty_two as *const c_void, c"getppid").unwrap()
    }

    fn to(hook: extern "C" fn() -> libc::pid_t) -> impl Fn(Target) -> Result<Detour, HookError> {
        move |target| {
            Ok(Detour {
                hook: hook as *mut c_void,
                before: target.function,
            })
        }
    }

    /// Returns the protection of the page at an address, as `/proc/self/maps` shows it.
    fn protection(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&address)
        };
        let line = maps.lines().find(holds).unwrap();
        line.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn a_table_that_the_loader_sealed_is_sealed_during_a_detour_and_after_it() {
        let _entry = ENTRY.lock().unwrap();
        let real = getppid();
        // Rust links test programs with RELRO and immediate binding, so this entry is sealed.
        let slots = slots();
        let all = |protection_wanted: &str| {
            for slot in &slots.slots {
                assert!(slots.sealed.contains(&slot.addr()));
                assert_eq!(protection(slot.addr()), protection_wanted);
            }
        };
        all("r--p");
        let redirected = slots.redirect(to(forty_two)).unwrap();
        assert_eq!(getppid(), 42);
        all("r--p");
        drop(redirected);
        assert_eq!(getppid(), real);
        all("r--p");
    }

    #[test]
    fn a_page_that_the_relro_segment_covers_in_part_stays_writable() {
        assert_eq!(sealed_pages(0x3_0d80..0x3_2000, 0x1000), 0x3_0000..0x3_2000);
        assert_eq!(sealed_pages(0x3_0d80..0x3_2fff, 0x1000), 0x3_0000..0x3_2000);
        assert_eq!(
            sealed_pages(0x3_0d80..0x5_2000, 0x1_0000),
            0x3_0000..0x5_0000
        );
        assert_eq!(
            sealed_pages(0x3_0d80..0x3_2000, 0x1_0000),
            0x3_0000..0x3_0000
        );
        assert_eq!(sealed_pages(0..0, 0x1000), 0..0);
    }

    /// Returns a table of one entry in this test's own memory, treated as sealed.
    fn table(entry: &AtomicPtr<c_void>, protect: Protect) -> Slots {
        let slot = std::ptr::from_ref(entry).cast_mut().cast::<c_void>();
        let page = rustix::param::page_size();
        let start = slot.addr() & !(page - 1);
        Slots {
            slots: vec![slot],
            library: 0..0,
            sealed: start..start + page,
            protect,
        }
    }

    #[test]
    fn an_entry_whose_page_cannot_be_sealed_again_is_restored() {
        let before = forty_three as *mut c_void;
        let entry = AtomicPtr::new(before);
        let unsealable = table(&entry, |_, protection| match protection {
            libc::PROT_READ => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            _ => Ok(()),
        });
        let problem = unsealable.redirect(to(forty_two)).err().unwrap();
        assert!(matches!(problem, HookError::Seal(_)), "{problem}");
        assert_eq!(entry.load(Ordering::Relaxed), before);

        let closed = table(&entry, |_, _| {
            Err(io::Error::from_raw_os_error(libc::EACCES))
        });
        let problem = closed.redirect(to(forty_two)).err().unwrap();
        assert!(matches!(problem, HookError::Unseal(_)), "{problem}");
        assert_eq!(entry.load(Ordering::Relaxed), before);
    }

    #[test]
    fn an_entry_that_another_library_has_changed_is_not_restored() {
        let entry = AtomicPtr::new(std::ptr::null_mut());
        let slots = table(&entry, |_, _| Ok(()));
        // A function may have several addresses: one in each codegen unit with a copy of it.
        let (hook, other): (extern "C" fn() -> _, _) = (forty_two, forty_three as *mut c_void);
        let redirected = slots.redirect(to(hook)).unwrap();
        assert_eq!(entry.load(Ordering::Relaxed), hook as *mut c_void);
        entry.store(other, Ordering::Relaxed);
        drop(redirected);
        assert_eq!(entry.load(Ordering::Relaxed), other);
    }

    #[test]
    fn an_entry_that_changes_between_load_and_exchange_is_loaded_again() {
        let entry = AtomicPtr::new(std::ptr::null_mut());
        let slots = table(&entry, |_, _| Ok(()));
        // Another use of the function's name may have another address.
        let other = forty_three as *mut c_void;
        let seen = std::cell::RefCell::new(Vec::new());
        let redirected = slots.redirect(|target| {
            seen.borrow_mut().push(target.function);
            // Another library writes its hook after the first load.
            entry.store(other, Ordering::Relaxed);
            to(forty_two)(target)
        });
        let redirected = redirected.unwrap();
        assert_eq!(*seen.borrow(), [std::ptr::null_mut(), other]);
        drop(redirected);
        assert_eq!(entry.load(Ordering::Relaxed), other);
    }

    #[test]
    fn an_entry_that_is_not_bound_yet_is_recognized() {
        let entry = AtomicPtr::new(std::ptr::without_provenance_mut(0x1234));
        let mut slots = table(&entry, |_, _| Ok(()));
        for (library, unbound) in [(0x1000..0x2000, true), (0x2000..0x3000, false)] {
            slots.library = library;
            let seen = std::cell::Cell::new(None);
            let refused = slots.redirect(|target| {
                seen.set(Some(target.unbound));
                Err(HookError::NoIoctl)
            });
            assert!(refused.is_err());
            assert_eq!(seen.get(), Some(unbound));
        }
        let own = Slots::find(forty_two as *const c_void, c"getppid").unwrap();
        assert!(own.library.contains(&(forty_two as *const c_void).addr()));
        assert!(
            !own.library
                .contains(&own.entry(own.slots[0]).load(Ordering::Relaxed).addr())
        );
    }

    #[test]
    fn a_function_that_is_not_called_has_no_entry() {
        let inside = forty_two as *const c_void;
        let error = Slots::find(inside, c"no_such_function").unwrap_err();
        assert!(
            matches!(&error, HookError::NoEntry(name) if name == "no_such_function"),
            "{error}"
        );
        let error = Slots::find(std::ptr::null(), c"ioctl").unwrap_err();
        assert!(matches!(error, HookError::NotLoaded), "{error}");
    }
}
